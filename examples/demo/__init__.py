"""The inbox on real data: every departure from New York in 2013, delivered at least once.

A broker hands 336,776 messages to worker processes, a tenth of them twice, some of these to two workers
at once, and one worker is killed with ``kill -9`` between its COMMIT and its acknowledgement. The
handler adds to totals, so every repetition shows. The stream runs twice, without and with the inbox:

    python -m examples.demo [--messages N] [--url URL]
"""
