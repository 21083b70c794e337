"""The processes of the tests of status-table mode. Each function is the main function of a process."""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta, tzinfo
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any, NoReturn, Self

from inbox import Claim, Event, EventKind, StatusInbox
from inbox.errors import GiveUp, InboxError, LeaseLost

from .stores import CONSUMER, Place, fail

POINTS = tuple(
    f"{when} {step}" for step in ("reserve", "charge", "ship") for when in ("before", "inside", "after")
)
"""Where a worker can die in the handler of `order`."""

ZOMBIE_ACTS = ("heartbeat", "step", "complete", "fail", "release")


@contextmanager
def inbox_at(place: Place, **options: Any) -> Iterator[StatusInbox]:
    """The tests' inbox, which shows verdicts, with this process's own store."""
    with place.open() as store:
        yield StatusInbox(CONSUMER, store=store, **{"on_refusal": "return"} | options)


def race(pipe: Connection, place: Place, barrier: Barrier, keys: list[str]) -> None:
    """Claim each key at the same instant as all other workers, and complete it when all have their answers.
    Sends the verdicts."""
    verdicts = []
    with inbox_at(place, lease=120, heartbeat=False) as inbox:
        for key in keys:
            barrier.wait(60)
            with inbox.claim(key) as claim:
                verdicts.append(claim.verdict)
                barrier.wait(60)
    pipe.send(verdicts)


def sleeper(pipe: Connection, place: Place, lease: float, act: str) -> None:
    """Claim the key `act`, say so, wait to be told, and do that act. Sends the result, and the value of
    `claim.lost`."""
    with inbox_at(place, lease=lease, heartbeat=False) as inbox:
        claims: list[Claim] = []
        try:
            with inbox.claim(act) as claim:
                claims.append(claim)
                pipe.send(claim.token)
                pipe.recv()
                _do(act, claim)
        except BaseException as error:  # noqa: BLE001 - the test hears of it
            pipe.send((type(error).__name__, claims[0].lost))
        else:
            pipe.send((None, claims[0].lost))


def renewer(pipe: Connection, place: Place, lease: float) -> None:
    """Handle a message with heartbeats until the claim is lost. Sends that it has begun, that the claim is
    lost, and what the next step raises."""

    lost = threading.Event()

    def hear(event: Event) -> None:
        if event.kind is EventKind.LOST:
            pipe.send("lost")
            lost.set()

    with inbox_at(place, lease=lease, on_event=hear) as inbox, suppress(LeaseLost), inbox.claim("a") as claim:
        pipe.send("begun")
        lost.wait()
        try:
            claim.step("charge", lambda: pipe.send("called"))
        except LeaseLost:
            pipe.send("LeaseLost")
            raise


def _do(act: str, claim: Claim) -> None:
    if act == "heartbeat":
        claim.heartbeat()
    elif act == "step":
        claim.step("charge", lambda: 1)
    elif act == "fail":
        fail()
    elif act == "release":
        raise KeyboardInterrupt


def order(pipe: Connection, place: Place, calls: Path, point: str | None, key: str, lease: float) -> None:
    """The handler of an order, which dies at a point. If it lives, it sends the verdict and its attempt."""

    def call(name: str) -> str:
        with calls.open("a") as file:
            file.write(f"{key} {name}\n")
        if point == f"inside {name}":
            _die()
        return f"{name} done"

    def step(claim: Claim, name: str, **options: Any) -> None:
        if point == f"before {name}":
            _die()
        assert claim.step(name, lambda: call(name), **options) == f"{name} done"
        if point == f"after {name}":
            _die()

    with inbox_at(place, lease=lease, heartbeat=False, max_attempts=5) as inbox:
        with inbox.claim(key) as claim:
            if claim.is_new:
                step(claim, "reserve", undo=lambda _: call("unreserve"))
                step(claim, "charge", on_unknown="halt")
                step(claim, "ship")
        pipe.send((claim.verdict, claim.attempt))


def compensate(pipe: Connection, place: Place, calls: Path, point: str | None, lease: float) -> None:
    """A handler that gives up after three steps, and dies while it compensates the named one. Sends the
    verdict."""

    def undo(name: str) -> None:
        with calls.open("a") as file:
            file.write(f"undo {name}\n")
        if point == name:
            _die()

    with inbox_at(place, lease=lease, heartbeat=False) as inbox:
        with suppress(GiveUp), inbox.claim("a") as claim:
            if claim.is_new:
                for name in ("reserve", "charge", "ship"):
                    claim.step(name, lambda name=name: name, undo=undo)
                raise GiveUp
        pipe.send(claim.verdict)


def wait_for_ever(pipe: Connection, place: Place) -> None:
    """A handler that waits until it is interrupted. Sends that it has begun."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with suppress(KeyboardInterrupt), inbox_at(place) as inbox, inbox.claim("a"):
        pipe.send("begun")
        pipe.recv()


def poison(pipe: Connection, place: Place, lease: float, max_attempts: int) -> None:
    """A message that kills its worker. Sends the verdict if the handler does not run."""
    with inbox_at(place, lease=lease, max_attempts=max_attempts) as inbox, inbox.claim("poison") as claim:
        if claim.is_new:
            _die()
        pipe.send(claim.verdict)


def _die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("survived kill -9")


def wrong_clock(pipe: Connection, place: Place, minutes: float) -> None:
    """A worker whose wall clock is wrong. Sends its time; then it claims each key with each age that it
    receives, sends the verdict and `retry_after`, and completes it."""
    shift_clock(minutes * 60)
    pipe.send(datetime.now(UTC).isoformat())
    with place.open() as store:
        inbox = StatusInbox(
            CONSUMER, store=store, heartbeat=False, retention=timedelta(hours=2), on_refusal="return"
        )
        while True:
            key, age = pipe.recv()
            with inbox.claim(key, message_time=store.now() - age) as claim:
                pass
            pipe.send((claim.verdict, claim.retry_after))


def shift_clock(seconds: float) -> None:
    """Shift this process's wall clock by this many seconds: `time.time` and every `datetime.now`."""
    right_time, right_datetime = time.time, datetime

    class AnyDatetime(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, right_datetime)

    class Shifted(datetime, metaclass=AnyDatetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Self:
            return cls.fromtimestamp(time.time(), tz)

    time.time = lambda: right_time() + seconds
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] in ("inbox", "tests") and getattr(module, "datetime", None) is right_datetime:
            vars(module)["datetime"] = Shifted


def interrupted_order(pipe: Connection, place: Place, calls: Path, lease: float) -> None:
    """An order with two steps, between which it waits to be told to go on. Sends that it waits, and then the
    result: a verdict, or the name of an error."""

    def call(name: str) -> str:
        with calls.open("a") as file:
            file.write(f"{name}\n")
        return name

    with inbox_at(place, lease=lease) as inbox:
        try:
            with inbox.claim("a") as claim:
                if claim.is_new:
                    claim.step("reserve", lambda: call("reserve"), on_unknown="halt")
                    pipe.send("waiting")
                    pipe.recv()
                    claim.step("ship", lambda: call("ship"), on_unknown="halt")
        except InboxError as error:
            pipe.send(type(error).__name__)
        else:
            pipe.send(claim.verdict)
