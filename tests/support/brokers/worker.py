"""A consumer in its own process, which is killed or stopped.

Started as `python -m tests.support.brokers.worker URL TOPIC GROUP POINT`, with the database's URL on standard
input; the broker's URL says which consumer it is. Each message's payload names the account to add to. It
prints "running" when the first message is running, and dies at `POINT` of that message, or never if POINT is
"never".
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import create_engine

from inbox import Delivery
from tests.support.brokers.consumers import bookkeeping
from tests.support.crash_worker import kill_at
from tests.support.database import Database
from tests.support.program import ROOT


@contextmanager
def worker(
    database: Database, url: str, topic: str, group: str = "", point: str = "never"
) -> Iterator[subprocess.Popen[str]]:
    """Such a process, which is killed at the end of the block."""
    module = [sys.executable, "-W", "error", "-m", "tests.support.brokers.worker"]
    command = [*module, url, topic, group, point]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    try:
        print(database.url.render_as_string(hide_password=False), file=process.stdin, flush=True)
        yield process
    finally:
        process.kill()
        process.communicate()


def said(process: subprocess.Popen[str]) -> str:
    """The next line that the worker prints."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def main(url: str, topic: str, group: str, point: str) -> None:
    """Consume until the end."""
    engine = create_engine(sys.stdin.readline().strip())
    kill_at(engine, point)
    spoken: list[str] = []

    def say(_: Delivery) -> None:
        if not spoken:
            spoken.append("running")
            print(*spoken, flush=True)

    handler = bookkeeping(engine, say)
    consumer: Any
    if url.startswith("amqp"):
        from inbox.rabbitmq import RabbitConsumer

        consumer = RabbitConsumer(url, topic, handler, concurrency=2, prefetch=20)
    else:
        from inbox.rocketmq import RocketMQConsumer

        consumer = RocketMQConsumer(url, topic, handler, group=group, concurrency=2, invisible=10)
    consumer.run()
    print("stopped", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
