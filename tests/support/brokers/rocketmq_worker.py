"""A consumer in its own process, which is killed.

Started as `python -m tests.support.brokers.rocketmq_worker ADDRESS TOPIC GROUP POINT`, with the database's
URL on standard input. Each message's payload names the account to add to. It dies at `POINT` of the first.
"""

import sys

from sqlalchemy import create_engine

from inbox.rocketmq import RocketMQConsumer
from tests.support.crash_worker import kill_at

from .consumers import bookkeeping
from .rocketmq_consumers import url_of


def main(address: str, topic: str, group: str, point: str) -> None:
    """Consume until the end."""
    engine = create_engine(sys.stdin.readline().strip())
    kill_at(engine, point)
    handler = bookkeeping(engine)
    RocketMQConsumer(url_of(address), topic, handler, group=group, concurrency=2, invisible=10).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
