"""A consumer in a process of its own, which is killed or stopped."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any, Literal, NoReturn

import pytest
from sqlalchemy import event
from sqlalchemy.engine import URL

from inbox_outbox_base.words.incoming import Delivery

from .handlers import Mode
from .runner import Runner
from .script import HandlerScript

Point = Literal["before commit", "after commit", "never"]


class Child:
    """The consumer's process."""

    def __init__(self, process: SpawnProcess, pipe: Connection, patience: float) -> None:
        self._process, self._pipe, self._patience = process, pipe, patience

    def first(self) -> None:
        """Return once a handler runs."""
        if not self._pipe.poll(self._patience):
            pytest.fail("the consumer in a process of its own has taken no message")
        self._pipe.recv()

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        os.kill(self._process.pid or 0, number)

    def exit_code(self) -> int | None:
        """Its exit code, once it has ended."""
        self._process.join(self._patience)
        if self._process.exitcode is None:
            pytest.fail("the consumer in a process of its own does not end")
        return self._process.exitcode


@contextmanager
def child(
    suite: type,
    address: Any,
    topic: str,
    url: URL,
    point: Point,
    patience: float,
    mode: Mode = "exactly once",
) -> Iterator[Child]:
    """Start a consumer in a process; it is gone at the end of the block."""
    context = multiprocessing.get_context("spawn")  # a fork would inherit the clients of this process
    ours, theirs = context.Pipe()
    given = (suite, address, topic, url.render_as_string(hide_password=False), point, mode, theirs)
    process = context.Process(target=_main, args=given)
    process.start()
    theirs.close()
    try:
        yield Child(process, ours, patience)
    finally:
        process.kill()
        process.join()
        ours.close()


def _main(suite: Any, address: Any, topic: str, url: str, point: Point, mode: Mode, pipe: Connection) -> None:
    engines: list[Any] = []

    def begin(_: Delivery) -> None:
        if len(script.runs) > 1:
            return
        pipe.send("running")
        if point != "never":
            _die_at_commit(engines[0], after=point == "after commit")

    from sqlalchemy.engine import make_url

    script = HandlerScript(begin)
    runner = Runner(
        lambda handle: suite.consumer(address, topic, handle),
        is_async=suite.is_async,
        url=make_url(url),
        script=script,
        mode=mode,
        on_engine=engines.append,
    )
    if suite.is_async:
        signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=runner.stop).start())
    runner.run()
    runner.close()


def _die_at_commit(engine: Any, *, after: bool) -> None:
    if after:
        # A connection comes back to the pool after its COMMIT has been answered.
        event.listen(engine, "commit", lambda _: event.listen(engine, "checkin", _die))
    else:
        event.listen(engine, "commit", _die)


def _die(*_: object) -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("survived SIGKILL")
