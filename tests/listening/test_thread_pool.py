"""Synchronous handlers run in threads that are reused."""

import asyncio
import gc
import sys
import threading
import weakref
from collections.abc import Callable, Iterator

import pytest

from inbox import Action, Listener, Outcome, Verdict
from inbox._listening import thread_pool
from inbox._listening.thread_pool import in_thread
from tests.support.processes import wait_until
from tests.support.program import run

NEW = Outcome(Verdict.NEW)
FORKS = """
import os, signal
from inbox import Listener, Outcome, Verdict

def decide():
    decisions = Listener().decide(["m"], lambda _: Outcome(Verdict.NEW))
    assert decisions.acknowledged == 1

decide()
child = os.fork()
if not child:
    signal.alarm(60)
decide()
if child:
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


class Message:
    """Something that can be seen to be gone."""


@pytest.fixture
def used() -> Iterator[list[threading.Thread]]:
    """The threads in which calls ran; they end with the test."""
    found: list[threading.Thread] = []
    yield found
    wait_until(lambda: not any(each.is_alive() for each in found))


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_pool, "_IDLE", 0.5)


def test_a_thread_is_used_again(used: list[threading.Thread]) -> None:
    """Successive calls run in the same thread, even after a call that raised. Idle threads end."""

    def work(number: int) -> int:
        used.append(threading.current_thread())
        return 1 // number

    call = in_thread(work)

    async def all_calls() -> list[int]:
        answers = [await call(1)]
        with pytest.raises(ZeroDivisionError):
            await call(0)
        return answers + [await call(1) for _ in range(20)]

    assert asyncio.run(all_calls()) == [1] * 21
    assert len(set(used)) == 1


def test_calls_at_the_same_time_have_a_thread_each(used: list[threading.Thread]) -> None:
    """Simultaneous calls each have their own thread and do not wait for each other."""
    meeting = threading.Barrier(3)

    def work() -> None:
        used.append(threading.current_thread())
        meeting.wait(30)

    call = in_thread(work)

    async def all_calls() -> None:
        for _ in range(5):
            await asyncio.gather(call(), call(), call())

    asyncio.run(all_calls())
    assert len(set(used)) == 3


def test_a_call_that_was_cancelled_keeps_its_thread(
    used: list[threading.Thread], caplog: pytest.LogCaptureFixture
) -> None:
    """A cancelled call keeps its thread until it ends. The next call runs in another thread without waiting.
    The late answer is dropped."""
    may_end = threading.Event()

    def work(blocks: bool) -> None:
        used.append(threading.current_thread())
        if blocks:
            may_end.wait(30)

    call = in_thread(work)

    async def all_calls() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(call(True), 0.01)
        await call(False)
        may_end.set()
        await asyncio.to_thread(used[0].join, 60)

    asyncio.run(all_calls())
    assert len(set(used)) == 2
    assert caplog.records == []


def test_a_call_that_raises_stop_iteration() -> None:
    """No future carries it, and yet the call ends, with an error of which it is the cause."""

    async def call() -> None:
        with pytest.raises(RuntimeError) as caught:
            await asyncio.wait_for(in_thread(next)(iter(())), 60)
        assert isinstance(caught.value.__cause__, StopIteration)

    asyncio.run(call())


def test_a_call_that_outlives_its_loop(used: list[threading.Thread]) -> None:
    """Nobody waits for its answer; its thread ends without an error."""
    may_end = threading.Event()

    def work() -> None:
        used.append(threading.current_thread())
        may_end.wait(30)

    async def call() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(in_thread(work)(), 0.5)

    asyncio.run(call())
    may_end.set()


def test_a_listener_uses_its_threads_again(
    used: list[threading.Thread], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten thousand messages, one after the other and four at a time, do not need a thread each."""
    monkeypatch.setattr(thread_pool, "_IDLE", 5.0)

    def handle(_: int) -> Outcome:
        used.append(threading.current_thread())
        return NEW

    one, four = Listener(), Listener(concurrency=4)
    for _ in range(5_000):
        assert one.decide([0], handle).acknowledged == 1
    for _ in range(50):
        assert four.decide(range(100), handle).acknowledged == 100
    assert len(used) == 10_000
    assert len(set(used)) < 20


def test_a_handler_that_hangs_keeps_its_thread(used: list[threading.Thread]) -> None:
    """It is left behind after the grace; other messages run in other threads, and none waits for it."""
    hangs, may_end = Listener(grace=0), threading.Event()

    def handle(message: str) -> Outcome:
        used.append(threading.current_thread())
        if message == "hangs":
            hangs.stop()
            may_end.wait(60)
        return NEW

    (decision,) = hangs.decide(["hangs"], handle)
    assert (decision.action, decision.outcome) == (Action.RETRY, None)
    for _ in range(20):
        assert Listener(concurrency=3).decide("abc", handle).acknowledged == 3
    assert used[0] not in used[1:]
    may_end.set()


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("kind", ["listener", "call"])
def test_an_idle_thread_keeps_no_message(
    used: list[threading.Thread], monkeypatch: pytest.MonkeyPatch, kind: str, number: int
) -> None:
    """Once a message is decided, the thread that waits for the next one has nothing of it, be it the thread's
    first message or not."""
    monkeypatch.setattr(thread_pool, "_IDLE", 60.0)

    def handle(_: object) -> Outcome:
        used.append(threading.current_thread())
        return NEW

    def decide(message: object) -> None:
        if kind == "listener":
            Listener().decide([message], handle)
        else:
            asyncio.run(_awaited(handle, message))

    wait_until(lambda: not thread_pool._idle)  # those of other tests would not have their first message here
    seen = list[weakref.ref[Message]]()
    for _ in range(number):
        message = Message()
        seen.append(weakref.ref(message))
        decide(message)
        del message
    wait_until(lambda: gc.collect() >= 0 and not any(each() for each in seen))
    assert len(set(used)) == 1
    assert used[0].is_alive()
    monkeypatch.setattr(thread_pool, "_IDLE", 0.1)
    decide(Message())  # which lets the thread end


async def _awaited(handle: Callable[[object], Outcome], message: object) -> Outcome:
    return await in_thread(handle)(message)


def test_a_fork_has_threads_of_its_own() -> None:
    """The parent's idle threads do not exist in a child, whose messages run all the same."""
    done = run([sys.executable, "-W", "ignore:This process:DeprecationWarning", "-c", FORKS])
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")
