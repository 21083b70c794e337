"""Processes that a test can stop, continue and kill.

They are forked from a server process without threads that has imported everything: starting Python for each
would take most of the tests' time.
"""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection as Pipe
from typing import Any

from tests.servers import freezing

CONTEXT = multiprocessing.get_context("forkserver")


class Worker:
    """`work(pipe, *arguments)` in its own process, which talks to the test through the pipe."""

    def __init__(self, work: Callable[..., None], *arguments: Any) -> None:
        self._pipe, end = CONTEXT.Pipe()
        self._name = work.__name__
        self._process = CONTEXT.Process(target=_begin, args=(work, end, *arguments), daemon=True)
        self._process.start()
        end.close()

    def hear(self, timeout: float = 60) -> Any:
        """Receive the worker's next message."""
        assert self._pipe.poll(timeout), f"{self._name}: nothing heard for {timeout} s"
        try:
            return self._pipe.recv()
        except EOFError:
            raise AssertionError(f"{self._name} has ended, with {self.exit_code()}") from None

    @property
    def has_spoken(self) -> bool:
        """Whether a message is waiting for `hear`."""
        return self._pipe.poll()

    def tell(self, what: Any = None) -> None:
        """Send something to the worker."""
        self._pipe.send(what)

    def freeze(self) -> None:
        """Stop it with SIGSTOP in the middle of its work, as on a machine that swaps."""
        freezing.freeze(self._pid())

    def thaw(self) -> None:
        """Let it continue after `freeze`; it does not notice."""
        freezing.thaw(self._pid())

    def interrupt(self) -> None:
        """Send SIGINT, as Ctrl-C does."""
        self._signal(signal.SIGINT)

    def terminate(self) -> None:
        """Send SIGTERM, as an operator who stops a service does."""
        self._signal(signal.SIGTERM)

    def exit_code(self, timeout: float = 60) -> int | None:
        """The exit code: zero, or minus the signal that killed it."""
        self._process.join(timeout)
        assert self._process.exitcode is not None, f"{self._name} still runs after {timeout} s"
        return self._process.exitcode

    def close(self) -> None:
        """Kill it."""
        self._process.kill()
        self._process.join()
        self._process.close()
        self._pipe.close()

    def _signal(self, number: signal.Signals) -> None:
        os.kill(self._pid(), number)

    def _pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid


def _begin(work: Callable[..., None], pipe: Pipe, *arguments: Any) -> None:
    # An example may have started the fork server, with Ctrl-C ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    work(pipe, *arguments)


@contextmanager
def workers(*works: Sequence[Any]) -> Iterator[list[Worker]]:
    """Start a worker for each (function, *arguments); they are killed at the end of the block."""
    started: list[Worker] = []
    try:
        started.extend(Worker(*work) for work in works)
        yield started
    finally:
        for worker in started:
            worker.close()


def wait_until(condition: Callable[[], object], timeout: float = 60) -> None:
    """Return once the condition holds; AssertionError if it never does."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout} s"
        time.sleep(0.02)
