"""A listener that is stopped: running messages finish, and the others are given back."""

import asyncio
import signal
import socket
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine

from inbox import Action, AsyncInbox, AsyncListener, Decision, Decisions, Inbox, Listener, Outcome, Verdict
from inbox._listening.awaited_listener import AwaitedListener
from inbox_outbox_base.calls import signals
from tests.support import accounts, listener_worker
from tests.support.database import Database
from tests.support.processes import wait_until, workers
from tests.support.together import Task

NEW = Outcome(Verdict.NEW)
GIVEN_BACK = Decision(Action.RETRY, reason="the listener is stopping")
NAMES = [str(number) for number in range(6)]

both_kinds = pytest.mark.parametrize("kind", ["threads", "tasks"])


def test_what_runs_finishes_and_the_rest_is_given_back() -> None:
    """After `stop` the running message gets its own decision, and no other message starts."""
    listener, seen = Listener(), list[str]()

    def handle(message: str) -> Outcome:
        seen.append(message)
        if message == "b":
            listener.stop()
            listener.stop()
        return NEW

    assert not listener.stopped
    decisions = listener.decide("abcd", handle)
    assert [each.action for each in decisions[:2]] == [Action.ACK] * 2
    assert decisions[2:] == (GIVEN_BACK,) * 2
    assert decisions.acknowledged == 2
    assert listener.stopped
    assert listener.decide("ef", handle) == (GIVEN_BACK,) * 2
    assert seen == ["a", "b"]


def test_what_runs_in_tasks_finishes() -> None:
    """After `stop` from another thread, running tasks finish, and no other message starts."""

    async def scenario() -> Decisions:
        listener = AsyncListener(concurrency=2)

        async def handle(message: str) -> Outcome:
            if message == "b":
                await asyncio.to_thread(listener.stop)
            return NEW

        decisions = await listener.decide("abcdef", handle)
        assert await listener.decide("g", handle) == (GIVEN_BACK,)
        return decisions

    decisions = asyncio.run(scenario())
    assert [each.action for each in decisions[:2]] == [Action.ACK] * 2
    assert decisions[-1] == GIVEN_BACK


@pytest.mark.parametrize("kind", [Listener, AwaitedListener])
def test_a_thread_that_outlives_the_grace_is_left_behind(
    kind: Callable[..., Listener | AwaitedListener], caplog: pytest.LogCaptureFixture
) -> None:
    """A message that takes longer than the grace is delivered again after the backoff. The later result of
    its thread does not change that, and is logged."""
    listener, go, used = kind(grace=0), threading.Event(), list[threading.Thread]()

    def handle(_: str) -> Outcome:
        used.append(threading.current_thread())
        threading.Timer(0.2, listener.stop).start()  # while the call waits
        go.wait(60)
        return NEW

    decisions = asyncio.run(_awaited(listener.decide("ab", handle)))
    assert decisions[0].action is Action.RETRY
    assert decisions[0].outcome is None
    assert decisions[0].delay > 0
    assert "after the stop" in decisions[0].reason
    assert decisions[1] == GIVEN_BACK
    (left,) = used
    assert left.daemon
    go.set()
    wait_until(lambda: "its handler ended after the message was given back: new" in caplog.text)
    assert decisions[0].action is Action.RETRY


async def _awaited(decisions: Decisions | Awaitable[Decisions]) -> Decisions:
    return decisions if isinstance(decisions, Decisions) else await decisions


def test_a_call_that_is_cancelled_leaves_its_thread_behind() -> None:
    """Cancelling the call begins nothing more. What runs goes on, also after its loop has ended, and then its
    key and its place are free."""
    listener, go, seen = AwaitedListener(key=str), threading.Event(), list[str]()
    running = threading.Event()

    def handle(message: str) -> Outcome:
        seen.append(message)
        running.set()
        go.wait(60)
        return NEW

    async def cancelled() -> None:
        call = asyncio.create_task(listener.decide("ab", handle))
        await asyncio.to_thread(running.wait, 60)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    asyncio.run(cancelled())
    go.set()
    assert asyncio.run(asyncio.wait_for(listener.decide("ab", handle), 60)).acknowledged == 2
    assert seen == ["a", "a", "b"]


def test_a_task_that_outlives_the_grace_is_cancelled() -> None:
    """A task that takes longer than the grace is cancelled, and has finished cleaning up when `decide`
    returns."""
    cleaned = []

    async def scenario() -> Decisions:
        listener = AsyncListener(grace=0)

        async def handle(message: str) -> Outcome:
            listener.stop()
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                cleaned.append(message)
            return NEW

        return await listener.decide("ab", handle)

    decisions = asyncio.run(scenario())
    assert decisions[0].action is Action.RETRY
    assert "after the stop" in decisions[0].reason
    assert decisions[1] == GIVEN_BACK
    assert cleaned == ["a"]


def test_a_stop_from_another_thread_wakes_the_loop() -> None:
    """A stop from another thread wakes an event loop that has nothing else to do."""

    async def scenario() -> Decisions:
        listener, loop = AsyncListener(grace=0), asyncio.get_running_loop()

        async def handle(_: str) -> Outcome:
            # Not before the loop is waiting: otherwise it would check for the stop anyway.
            loop.call_later(0.05, threading.Timer(0.2, listener.stop).start)
            await asyncio.Event().wait()
            return NEW

        return await asyncio.wait_for(listener.decide("a", handle), 30)

    assert "after the stop" in asyncio.run(scenario())[0].reason


def test_a_task_that_ends_while_it_is_cancelled_is_believed() -> None:
    """An outcome that a handler returns while it is being cancelled still counts."""

    async def scenario() -> Decisions:
        listener = AsyncListener(grace=0)

        async def handle(_: str) -> Outcome:
            listener.stop()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return NEW
            raise AssertionError("never set")

        return await listener.decide("a", handle)

    assert asyncio.run(scenario())[0].action is Action.ACK


def test_a_call_that_is_cancelled_cancels_its_messages() -> None:
    """Cancelling `decide` leaves nothing running; its keys and concurrency become free."""
    cancelled = []

    async def scenario() -> Decisions:
        listener, running = AsyncListener(key=str), asyncio.Event()

        async def forever(message: str) -> Outcome:
            running.set()
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.append(message)
            return NEW

        async def quick(_: str) -> Outcome:
            return NEW

        call = asyncio.create_task(listener.decide("ab", forever))
        await running.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert cancelled == ["a"]
        return await asyncio.wait_for(listener.decide("ab", quick), 60)

    assert asyncio.run(scenario()).acknowledged == 2


@both_kinds
def test_a_database_that_hangs_before_the_first_message(kind: str) -> None:
    """A database that accepts connections and never answers does not delay a stop, even if the listener has
    never reached it: the message is given back when `grace` is over."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"postgresql+psycopg://nobody@127.0.0.1:{silent.getsockname()[1]}/nothing"
        engine = create_engine(url)

        @Inbox("a").handler(engine, key=str)
        def handle(_: Any, __: str) -> None: ...

        def decided() -> Any:
            if kind == "threads":
                return stopped(Listener(grace=0.1)).decide("a", handle)
            tasks = create_async_engine(url)

            @AsyncInbox("a").handler(tasks, key=str)
            async def handle_async(_: Any, __: str) -> None: ...

            async def decide() -> Any:
                return await stopped(AsyncListener(grace=0.1)).decide("a", handle_async)

            return asyncio.run(decide())

        def stopped(listener: Any) -> Any:
            threading.Timer(0.5, listener.stop).start()
            return listener

        (decision,) = Task(decided).result()
    for left in [each for each in threading.enumerate() if each.name == "inbox worker"]:
        left.join(60)  # its connection is refused when the block ends
    assert decision.action is Action.RETRY
    assert decision.outcome is None


def test_a_handler_that_is_cancelled_comes_again() -> None:
    """If a message's task is cancelled from elsewhere, the decision is to deliver it again."""

    async def handle(_: str) -> Outcome:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)
        return NEW

    (decision,) = asyncio.run(AsyncListener().decide("a", handle))
    assert (decision.action, decision.reason) == (Action.RETRY, "cancelled")


def test_the_former_signal_handlers_come_back() -> None:
    """Inside the block, the signals stop the listener; after it, the former signal handlers are back."""
    numbers = (signal.SIGTERM, signal.SIGUSR1)
    former = [signal.getsignal(number) for number in numbers]
    listener = Listener()
    with listener.stopping_on_sigterm(signal.SIGUSR1):
        signal.raise_signal(signal.SIGUSR1)
        assert listener.stopped
    assert [signal.getsignal(number) for number in numbers] == former


def test_a_second_signal_does_what_it_did_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """A later signal is passed on to the program's own handler, also out of a block in another one. One that
    comes with the first counts as the same."""
    seen = list[int]()
    former = signal.signal(signal.SIGUSR1, lambda number, _: seen.append(number))
    listener = Listener()
    try:
        with Listener().stopping_on_sigterm(signal.SIGUSR1), listener.stopping_on_sigterm(signal.SIGUSR1):
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGUSR1)
            assert not seen
            monkeypatch.setattr(signals, "_ONE_SIGNAL", -1.0)
            signal.raise_signal(signal.SIGUSR1)
            assert seen == [signal.SIGUSR1]
            assert listener.stopped
    finally:
        signal.signal(signal.SIGUSR1, former)


def test_signals_are_for_the_main_thread() -> None:
    """In any other thread Python's own error is raised, and the signal handlers do not change."""

    def elsewhere() -> None:
        with Listener().stopping_on_sigterm():
            raise AssertionError("entered")

    former = signal.getsignal(signal.SIGTERM)
    with pytest.raises(ValueError, match="main thread"):
        Task(elsewhere).result()
    assert signal.getsignal(signal.SIGTERM) is former


@both_kinds
def test_sigterm_in_the_middle_of_a_batch(postgres: Database, kind: str) -> None:
    """A process that receives SIGTERM during its third message finishes it, gives back the rest and exits
    with 0. When the rest is delivered again, every message has taken effect once."""
    engine = postgres.engine()
    accounts.make(engine, NAMES)
    decisions, acknowledged = terminated(postgres, kind, "patient")
    assert [action for action, *_ in decisions] == ["ack"] * 3 + ["retry"] * 3
    assert decisions[3:] == [["retry", 0, GIVEN_BACK.reason]] * 3
    assert acknowledged == 3
    assert accounts.totals(engine) == {name: int(name in NAMES[:3]) for name in NAMES}
    assert deliver_again(postgres, decisions) == ["new"] * 3
    assert accounts.totals(engine) == dict.fromkeys(NAMES, 1)


@both_kinds
def test_sigterm_in_a_message_that_never_ends(postgres: Database, kind: str) -> None:
    """A message that never ends delays the process's exit by no more than the grace, and takes effect when it
    is delivered again."""
    engine = postgres.engine()
    accounts.make(engine, NAMES)
    decisions, acknowledged = terminated(postgres, kind, "stuck")
    assert [action for action, *_ in decisions] == ["ack"] * 2 + ["retry"] * 4
    assert "after the stop" in decisions[2][2]
    assert acknowledged == 2
    assert accounts.totals(engine) == {name: int(name in NAMES[:2]) for name in NAMES}
    assert deliver_again(postgres, decisions) == ["new"] * 4
    assert accounts.totals(engine) == dict.fromkeys(NAMES, 1)


def terminated(database: Database, kind: str, stuck: str) -> tuple[list[Any], int]:
    """The decisions of a worker that receives SIGTERM while its third message is running."""
    with workers((listener_worker.main, database.url, kind, NAMES, stuck)) as (worker,):
        assert worker.hear() == "running"
        worker.terminate()
        decisions, acknowledged = worker.hear()
        assert worker.exit_code() == 0
    return decisions, acknowledged


def deliver_again(database: Database, decisions: list[Any]) -> list[str]:
    """Deliver the messages again that were not acknowledged. Returns their verdicts."""
    engine = database.engine()
    book = Inbox("payments").handler(engine, key=str)(accounts.add)
    again = [name for name, (action, *_) in zip(NAMES, decisions, strict=True) if action == "retry"]
    decided = Listener(order="in_order").decide(again, book)
    assert decided.acknowledged == len(again)
    return [str(each.outcome.verdict) for each in decided if each.outcome is not None]
