"""A consumer in its own process, which is killed or stopped: see test_rabbit_failures.

Started as `python -m tests.support.brokers.rabbit_worker URL QUEUE POINT`, with the database's URL on
standard input. Each message's payload names the account to add to. It prints "running" when the first message
is running, and dies at `POINT` of that message, or never if POINT is "never".
"""

import sys

from sqlalchemy import create_engine

from inbox import Delivery
from inbox.rabbitmq import RabbitConsumer
from tests.support.crash_worker import kill_at

from .rabbit_consumers import bookkeeping


def main(url: str, queue: str, point: str) -> None:
    """Consume until the end."""
    engine = create_engine(sys.stdin.readline().strip())
    kill_at(engine, point)
    said: list[str] = []

    def say(_: Delivery) -> None:
        if not said:
            said.append("running")
            print(*said, flush=True)

    RabbitConsumer(url, queue, bookkeeping(engine, say), concurrency=2, prefetch=20).run()
    print("stopped", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
