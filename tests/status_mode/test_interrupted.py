"""Handlers that end with a BaseException such as SystemExit: an interruption of the program, or a failure of
the handler."""

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NoReturn

import pytest

from inbox import Claim, Status, Verdict, retry
from inbox._status_mode.hold import INTERRUPTIONS
from inbox._status_mode.stores import Store
from inbox.errors import GiveUp
from tests.support.on_servers import both_stores, on
from tests.support.status_mode.asynchronous import in_loop, inbox_at, recorded
from tests.support.status_mode.stores import CONSUMER, Place, deliver, status_inbox, stored


def leave(*_: Any) -> NoReturn:
    """Raise SystemExit, as a library written for the command line does, or a signal handler."""
    raise SystemExit(3)


def interrupt(_: Claim) -> NoReturn:
    """Raise what Ctrl-C raises."""
    raise KeyboardInterrupt


@pytest.fixture
def usr1() -> Iterator[signal.Signals]:
    """A signal that tells this program to stop."""
    former = signal.signal(signal.SIGUSR1, leave)
    yield signal.SIGUSR1
    signal.signal(signal.SIGUSR1, former)


def counted(store: Store) -> tuple[Status, int, int]:
    """The recorded status, attempts and interruptions of the message."""
    record = stored(store)
    return record.status, record.attempts_started, record.interruptions


@on("sqlite", fixture="place")
def test_a_handler_that_leaves_the_program_has_failed(store: Store) -> None:
    """A handler's own SystemExit comes through and counts as an attempt; a message that raises it each time
    ends dead."""
    inbox, runs = status_inbox(store, max_attempts=2), list[int]()

    def body(claim: Claim) -> None:
        runs.append(claim.attempt)
        leave()

    for _ in range(2):
        with pytest.raises(SystemExit):
            deliver(inbox, body)
    assert deliver(inbox, body).verdict is Verdict.DEAD
    assert runs == [1, 2]
    assert (counted(store), stored(store).error) == ((Status.DEAD, 2, 0), "SystemExit: 3")


@on("sqlite", fixture="place")
def test_a_program_that_is_told_to_stop_has_not_failed(store: Store, usr1: signal.Signals) -> None:
    """A SystemExit raised by the program's signal handler interrupts the message; no attempt is counted."""
    with pytest.raises(SystemExit):
        deliver(status_inbox(store), lambda _: os.kill(os.getpid(), usr1))
    assert counted(store) == (Status.FAILED, 0, 1)


@on("sqlite", fixture="place")
def test_a_listener_that_is_stopping_has_not_failed(store: Store) -> None:
    """A SystemExit while the listener is stopping interrupts the message; the attempt is not counted."""
    inbox = status_inbox(store)
    listener = inbox.listener()

    @inbox.handler(key=lambda _: "a")
    def handle(_: Claim, stops: Any) -> None:
        if stops:
            listener.stop()
        leave()

    for stops, expected in ((False, (Status.FAILED, 1, 0)), (True, (Status.FAILED, 1, 1))):
        with pytest.raises(SystemExit):
            listener.decide([stops], handle)
        assert counted(store) == expected


@both_stores
def test_interruptions_count_in_the_end(store: Store) -> None:
    """A message that is interrupted too many times is dead after all; an operator's retry resets the
    counts."""
    inbox = status_inbox(store, max_attempts=1)
    for number in range(INTERRUPTIONS):
        with suppress(KeyboardInterrupt):
            deliver(inbox, interrupt)
        assert counted(store) == (Status.FAILED, 0, number + 1)
    with suppress(KeyboardInterrupt):
        deliver(inbox, interrupt)
    assert counted(store) == (Status.DEAD, 1, INTERRUPTIONS)
    retry(store, CONSUMER, "a")
    assert counted(store) == (Status.FAILED, 0, 0)


@both_stores
def test_an_undo_that_is_interrupted(store: Store) -> None:
    """The message is given back, and its next delivery undoes the step."""
    calls: list[str] = []

    def undo(_: Any) -> None:
        calls.append("undo")
        if len(calls) == 1:
            raise KeyboardInterrupt

    def body(claim: Claim) -> None:
        claim.step("lock", lambda: None, undo=undo)
        raise GiveUp

    with pytest.raises(KeyboardInterrupt):
        deliver(status_inbox(store), body)
    assert counted(store) == (Status.FAILED, 0, 1)
    with suppress(GiveUp):
        deliver(status_inbox(store), body)
    assert stored(store).status is Status.DEAD
    assert calls == ["undo", "undo"]


@on("sqlite", fixture="place")
@in_loop
async def test_an_undo_that_waits_for_something_cancelled(place: Place) -> None:
    """It has failed, and nobody is cancelled."""

    async def undo(_: Any) -> None:
        other = asyncio.get_running_loop().create_future()
        other.cancel()
        await other

    async def lock() -> None:
        return None

    async with inbox_at(place) as inbox:
        with suppress(GiveUp):
            async with inbox.claim("a") as claim:
                await claim.step("lock", lock, undo=undo)
                raise GiveUp
        record = recorded(place)
    assert record.status is Status.FAILED
    assert record.error == "RuntimeError: undo of step 'lock' failed: CancelledError"


@on("sqlite", fixture="place")
@in_loop
async def test_a_cancellation_that_nobody_sent_has_failed(place: Place) -> None:
    """A handler that awaits something else that was cancelled has failed, because its own task was not
    cancelled. A handler whose own task is cancelled has not."""

    async def wait_for_another() -> None:
        other = asyncio.get_running_loop().create_future()
        other.cancel()
        await other

    async def handle() -> None:
        async with inbox.claim("a") as claim:
            if claim.attempt == 1:
                await wait_for_another()
            await asyncio.sleep(60)

    async with inbox_at(place, max_attempts=2) as inbox:
        with pytest.raises(asyncio.CancelledError):
            await handle()
        record = recorded(place)
        assert (record.status, record.attempts_started, record.error) == (Status.FAILED, 1, "CancelledError")
        task = asyncio.create_task(handle())
        await asyncio.sleep(0.3)
        task.cancel()
        await asyncio.wait([task])
    record = recorded(place)
    assert (record.status, record.attempts_started, record.interruptions) == (Status.FAILED, 1, 1)
