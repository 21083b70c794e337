"""A consumer in its own process, which is killed or stopped: see test_rocketmq_consumer_failures.

Started as `python -m tests.support.brokers.rocketmq_worker ADDRESS TOPIC GROUP POINT`, with the database's
URL on standard input. Each message's payload names the account to add to. It prints "running" when the first
message is running, and dies at `POINT` of that message, or never if POINT is "never".
"""

import sys

from sqlalchemy import create_engine

from inbox import Delivery
from inbox.rocketmq import RocketMQConsumer
from tests.support.crash_worker import kill_at

from .rocketmq_consumers import bookkeeping, url_of


def main(address: str, topic: str, group: str, point: str) -> None:
    """Consume until the end."""
    engine = create_engine(sys.stdin.readline().strip())
    kill_at(engine, point)
    said: list[str] = []

    def say(_: Delivery) -> None:
        if not said:
            said.append("running")
            print(*said, flush=True)

    handler = bookkeeping(engine, say)
    RocketMQConsumer(url_of(address), topic, handler, group=group, concurrency=2, invisible=10).run()
    print("stopped", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
