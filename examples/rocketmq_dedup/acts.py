"""The five acts. Each has a topic, and a group of the same name."""

import json
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import URL, Engine

from examples.rocketmq_dedup.shop import SOON, Handler, Noted, Payments, paying, placed, placing
from inbox import Delivery
from inbox.rocketmq import RocketMQConsumer
from outbox import Accepted, Envelope
from outbox.rocketmq import RocketMQPublisher

TOPICS = ("dedup-resent", "dedup-hangs", "dedup-dies", "dedup-payments", "dedup-poison")
DEAD = "dedup-dead"
ATTEMPTS = 16
PATIENCE = 120
"""The most seconds for an act."""


@dataclass(frozen=True, slots=True)
class Shown:
    """What an act has shown."""

    act: str
    verdicts: list[str]
    """About each delivery that this program has seen."""
    effect: int
    """How often it took effect."""
    expected: int


@dataclass(frozen=True, slots=True)
class Stage:
    """The servers."""

    engine: Engine
    url: URL
    address: str

    def send(self, topic: str, number: str, *, times: int = 1) -> None:
        """Send an order; a second time with another message id, as a producer does that has no outbox.

        Raises:
            RuntimeError: RocketMQ does not take it.
        """
        publisher = RocketMQPublisher(self.address)
        try:
            for _ in range(times):
                message = Envelope(
                    id=str(uuid.uuid4()),
                    topic=topic,
                    key=number,
                    payload=json.dumps({"order": number}).encode(),
                    content_type="application/json",
                    headers={},
                    attempt=1,
                    created_at=datetime.now(UTC),
                )
                outcomes = [
                    each[1] if isinstance(each, tuple) else each for each in publisher.send([message])
                ]
                if outcomes != [Accepted()]:
                    raise RuntimeError(f"RocketMQ does not take a message: {outcomes}")
        finally:
            publisher.close()

    @contextmanager
    def consuming(self, topic: str, handler: Handler, **options: Any) -> Iterator[Noted]:
        """A consumer while the block runs."""
        noted = Noted(handler)
        options = {"group": topic, "backoff": SOON, "invisible": 10, "concurrency": 2, "key": None, **options}
        consumer = RocketMQConsumer(self.address, topic, noted, **options)
        running = threading.Thread(target=consumer.run)
        running.start()
        try:
            yield noted
        finally:
            consumer.stop()
            running.join()

    @contextmanager
    def worker(self, topic: str, end: str) -> Iterator[subprocess.Popen[str]]:
        """A consumer in a process of its own, whose handler has begun."""
        command = [sys.executable, "-m", "examples.rocketmq_dedup.worker", self.address, topic, end]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert process.stdin is not None  # noqa: S101 - for the type checker
        assert process.stdout is not None  # noqa: S101
        try:
            print(self.url.render_as_string(hide_password=False), file=process.stdin, flush=True)
            process.stdout.readline()
            yield process
        finally:
            process.kill()
            process.communicate()


def resent(stage: Stage) -> Shown:
    """The producer has no answer to its first send, and sends the order again."""
    topic, number = TOPICS[0], "order-1"
    stage.send(topic, number, times=2)
    with stage.consuming(topic, placing(stage.engine)) as noted:
        wait_until(lambda: noted.verdicts.count("duplicate") == 1)
    return Shown("the producer sends twice", noted.verdicts, placed(stage.engine, number), 1)


def hangs(stage: Stage) -> Shown:
    """A consumer hangs in its handler. RocketMQ gives the message to another one, as after a rebalance, and
    then the first one goes on."""
    topic, number = TOPICS[1], "order-2"
    stage.send(topic, number)
    with stage.worker(topic, "hangs") as worker, stage.consuming(topic, placing(stage.engine)) as noted:
        worker.send_signal(signal.SIGSTOP)
        wait_until(lambda: "in_flight" in noted.verdicts)
        worker.send_signal(signal.SIGCONT)
        wait_until(lambda: "duplicate" in noted.verdicts)
    effect = placed(stage.engine, number)
    return Shown("a consumer hangs, another one gets its message", noted.verdicts, effect, 1)


def dies(stage: Stage) -> Shown:
    """A consumer is killed between COMMIT and acknowledgement."""
    topic, number = TOPICS[2], "order-3"
    stage.send(topic, number)
    with stage.worker(topic, "dies") as worker:
        worker.wait(PATIENCE)
    with stage.consuming(topic, placing(stage.engine)) as noted:
        wait_until(lambda: "duplicate" in noted.verdicts)
    effect = placed(stage.engine, number)
    return Shown("a consumer dies between COMMIT and acknowledgement", noted.verdicts, effect, 1)


def calls(stage: Stage) -> Shown:
    """A handler calls another service, and the same order comes a second time meanwhile: that message is
    delayed, and then acknowledged without a call."""
    topic, number, payments = TOPICS[3], "order-4", Payments()
    stage.send(topic, number, times=2)
    with stage.consuming(topic, paying(stage.engine, payments)) as noted:
        wait_until(lambda: "duplicate" in noted.verdicts)
    return Shown("a duplicate while the handler calls a service", noted.verdicts, payments.calls[number], 1)


def fails(stage: Stage) -> Shown:
    """A message that fails always becomes a dead letter after sixteen attempts, with the reason."""
    topic, number = TOPICS[4], "order-5"
    stage.send(topic, number)
    letters: list[Delivery] = []

    def fail(_: Delivery) -> None:
        raise ValueError("there is no such article")

    handler = placing(stage.engine, fail)
    with stage.consuming(topic, handler, max_attempts=ATTEMPTS, dead_letter=DEAD) as noted:
        wait_until(lambda: len(noted.verdicts) == ATTEMPTS)
        with stage.consuming(DEAD, placing(stage.engine, letters.append)):
            wait_until(lambda: letters)
    reasons = [letter.raw.user_properties["inbox-reason"] for letter in letters]
    is_told = len(reasons) == 1 and "no such article" in reasons[0]
    return Shown(
        "a message that always fails: attempts", noted.verdicts, ATTEMPTS if is_told else 0, ATTEMPTS
    )


ACTS = (resent, hangs, dies, calls, fails)


def wait_until(condition: Callable[[], object]) -> None:
    """Return once the condition holds.

    Raises:
        RuntimeError: it does not within two minutes.
    """
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError("an act has not ended in time")
        time.sleep(0.05)
