"""Inbox and outbox on real data: every departure from New York in 2013, delivered at least once.

Act one: a broker hands 336,776 messages to worker processes, a tenth of them twice, some of these to two
workers at once, and one worker is killed with ``kill -9`` between its COMMIT and its acknowledgement. The
handler adds to totals, so every repetition shows. The stream runs twice, without and with the inbox.

Act two: the same departures as a DataFrame, a tenth of them twice, are written by Spark, an executor is
killed with ``kill -9`` half-way, and the job is submitted again; once with Spark's own JDBC writer, and once
with the inbox's. It needs Java, and is left out where there is none.

Act three: the first 4,000 departures are written to a database and announced to others, by a program that
is killed at random: one that commits and then sends, one that sends and then commits, and one with an outbox,
whose relays are killed as well. What was committed is compared with what a consumer has heard of.

    python -m examples.demo [--act 1|2|3] [--messages N] [--url URL]
"""
