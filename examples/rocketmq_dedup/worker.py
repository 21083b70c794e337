"""A consumer in a process of its own, which hangs in its handler or is killed after its COMMIT.

Started as `python -m examples.rocketmq_dedup.worker ADDRESS TOPIC hangs|dies`, with the database's URL on
standard input. It prints "running" when its handler begins.
"""

import os
import signal
import sys
import time
from typing import NoReturn

from sqlalchemy import create_engine, event

from examples.rocketmq_dedup.shop import placing
from inbox import Delivery
from inbox.rocketmq import RocketMQConsumer


def main(address: str, topic: str, end: str) -> None:
    """Consume until the end."""
    engine = create_engine(sys.stdin.readline().strip())
    if end == "dies":
        # A connection comes back to the pool once its COMMIT has been answered.
        event.listen(engine, "commit", lambda _: event.listen(engine, "checkin", _die))

    def say(_: Delivery) -> None:
        print("running", flush=True)
        time.sleep(1)

    RocketMQConsumer(address, topic, placing(engine, say), group=topic, invisible=10).run()


def _die(*_: object) -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("survived kill -9")


if __name__ == "__main__":
    main(*sys.argv[1:])
