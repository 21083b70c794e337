"""Work in several threads, synchronised by what the server reports, not by the clock."""

import asyncio
import threading
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any, Generic, Protocol, TypeVar

from sqlalchemy import URL, Engine, event, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from inbox import Outcome, Verdict, is_transient


class Stoppable(Protocol):
    """Something that runs until it is told to stop."""

    def stop(self) -> object:
        """Tell it to stop."""


M = TypeVar("M")
S = TypeVar("S", bound=Stoppable)
T = TypeVar("T")

_BLOCKED = {
    "postgresql": "SELECT count(*) FROM pg_locks WHERE NOT granted",
    "mysql": "SELECT count(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'",
}


class Task(Generic[T]):
    """A function that starts to run in a new thread immediately."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._results: list[T] = []
        self._errors: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def result(self, timeout: float = 60) -> T:
        """The function's result; raises its error, or AssertionError if it never ends."""
        self._thread.join(timeout)
        assert not self._thread.is_alive(), f"still running after {timeout} s"
        if self._errors:
            raise self._errors[0]
        return self._results[0]

    def _run(self) -> None:
        try:
            self._results.append(self._work())
        except BaseException as error:  # noqa: BLE001 - `result` raises it
            self._errors.append(error)


@contextmanager
def in_a_loop(
    database: URL | Callable[[], AsyncEngine],
    make: Callable[[AsyncEngine], S],
    run: Callable[[S], Awaitable[None]],
) -> Iterator[S]:
    """During the block, run what `make` returns in another thread's event loop with its own engine; the block
    raises the error of `run`."""
    made: SimpleQueue[S] = SimpleQueue()

    async def scenario() -> None:
        engine = create_async_engine(database) if isinstance(database, URL) else database()
        try:
            consumer = make(engine)
            made.put(consumer)
            await run(consumer)
        finally:
            await engine.dispose()

    running = Task(lambda: asyncio.run(scenario()))
    consumer = made.get(timeout=60)
    try:
        yield consumer
    finally:
        consumer.stop()
        running.result()


def together(works: Sequence[Callable[[], T]], timeout: float = 60) -> list[T]:
    """Start functions at the same moment, and return their results."""
    barrier = threading.Barrier(len(works), timeout=timeout)

    def after_barrier(work: Callable[[], T]) -> T:
        barrier.wait()
        return work()

    tasks = [Task(lambda work=work: after_barrier(work)) for work in works]  # type: ignore[misc]
    return [task.result(timeout) for task in tasks]


def wait_until_blocked(engine: Engine, timeout: float = 30) -> None:
    """Return once a transaction waits for another one's lock, according to the server.

    SQLite cannot tell (a waiting process tries again and again): there it returns immediately.
    """
    question = _BLOCKED.get(engine.dialect.name)
    if question is None:
        return
    deadline = time.monotonic() + timeout
    with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        while not connection.execute(text(question)).scalar_one():
            assert time.monotonic() < deadline, "nothing waits for a lock"
            time.sleep(0.15)  # MySQL keeps its answer until nobody has asked for a tenth of a second


class Broker(Generic[M]):
    """Delivers at least once: it redelivers messages that are not acknowledged."""

    def __init__(self, messages: Iterable[M], timeout: float = 90) -> None:
        self._queue = deque(messages)
        self._deadline = time.monotonic() + timeout
        self._lock = threading.Lock()
        self.verdicts: Counter[Verdict] = Counter()
        """How many deliveries had each verdict."""
        self.redelivered = 0
        """How many deliveries ended in a transient error."""

    def deliver(self, handle: Callable[[M], Outcome], workers: int = 16) -> None:
        """Deliver all messages to `workers` threads, each until its message is acknowledged."""
        together([lambda: self._work(handle)] * workers, timeout=120)

    def _work(self, handle: Callable[[M], Outcome]) -> None:
        while True:
            try:
                message = self._queue.popleft()
            except IndexError:
                return
            if not self._is_acknowledged(handle, message):
                assert time.monotonic() < self._deadline, f"{message!r} is delivered again and again"
                self._queue.append(message)

    def _is_acknowledged(self, handle: Callable[[M], Outcome], message: M) -> bool:
        """Whether the handler returned, which acknowledges the message."""
        try:
            verdict = handle(message).verdict
        except Exception as error:
            if not is_transient(error):
                raise
            with self._lock:
                self.redelivered += 1
            return False
        with self._lock:
            self.verdicts[verdict] += 1
        return True


def in_between(engine: Engine, statement: str, act: Callable[[], object]) -> None:
    """Call a function right after the engine's first statement that begins like this."""
    calls = iter([act])

    @event.listens_for(engine, "after_cursor_execute")
    def look(*args: Any) -> None:
        if args[2].startswith(statement):
            next(calls, lambda: None)()
