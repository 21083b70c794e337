"""Inbox and outbox on real data: every departure from New York in 2013, delivered at least once.

Act one: a broker delivers 336,776 messages to worker processes, a tenth of them twice, some of these to two
workers at the same time. One worker is killed with ``kill -9`` between its COMMIT and its acknowledgement.
The handler adds to totals, so every repetition shows. The stream runs twice, without and with the inbox.

Act two: Spark writes the same departures as a DataFrame, a tenth of them twice, an executor is killed with
``kill -9`` half-way, and the job is submitted again; once with Spark's own JDBC writer, and once with the
inbox's. It needs Java, and is skipped without it.

Act three: three programs, killed at random, write the first 4,000 departures to a database and announce them
to others: one commits and then sends, one sends and then commits, and one has an outbox, whose relays are
killed as well. What was committed is compared with what a consumer received.

    python -m examples.demo [--act 1|2|3] [--messages N] [--url URL] [--web]
"""
