"""Synchronous handlers of consumers run in threads that are used again."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

from inbox_outbox_base.calls import threads
from inbox_outbox_base.calls.threads import in_thread
from tests.support.status_workers import wait_until


@pytest.fixture
def used() -> Iterator[list[threading.Thread]]:
    """The threads in which calls ran; they end with the test."""
    found: list[threading.Thread] = []
    yield found
    wait_until(lambda: not any(each.is_alive() for each in found))


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_IDLE", 0.5)


def test_a_thread_is_used_again(used: list[threading.Thread]) -> None:
    """One call after the other runs in one thread, also after a call that raised; idle threads end."""

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
    """No call waits for another one."""
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


def test_a_call_that_was_cancelled_keeps_its_thread(used: list[threading.Thread]) -> None:
    """The next call runs in another thread, and does not wait."""
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

    asyncio.run(all_calls())
    wait_until(lambda: len(used) == 2)
    may_end.set()
    assert len(set(used)) == 2
