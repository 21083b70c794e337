"""The processes of a trial: two services, and workers that are killed and restarted."""

import multiprocessing
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.connection import Connection as Pipe
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any, Self

from sqlalchemy import URL

from examples.order_flow import services, worker
from examples.order_flow.remote import Remote

PATIENCE = 60
"""The most seconds for a process to start, and to end."""

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["examples.order_flow.services", "examples.order_flow.worker"])


@dataclass(slots=True, eq=False)
class Child:
    """A process that ends when its pipe is closed."""

    process: BaseProcess
    pipe: Pipe

    @classmethod
    def start(cls, main: Callable[..., None], *arguments: Any) -> Self:
        """Run `main(pipe, *arguments)` in a new process."""
        ours, theirs = CONTEXT.Pipe()
        process = CONTEXT.Process(target=main, args=(theirs, *arguments), daemon=True)
        # Ctrl-C is for the parent, which then ends the others: the server that they are forked from starts
        # with SIGINT ignored.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            forkserver.ensure_running()
        finally:
            signal.signal(signal.SIGINT, before)
        process.start()
        theirs.close()
        return cls(process, ours)

    def end(self) -> None:
        """Tell it to end, and wait until it has."""
        self.pipe.close()
        self.process.join(PATIENCE)
        self.kill()

    def kill(self) -> None:
        """End it with ``kill -9``."""
        self.process.kill()
        self.process.join()
        self.pipe.close()


@contextmanager
def service() -> Iterator[Remote]:
    """A service that runs as long as the block.

    Raises:
        RuntimeError: it does not start.
    """
    child = Child.start(services.main)
    try:
        if not child.pipe.poll(PATIENCE):
            raise RuntimeError("a service did not start")
        yield Remote(child.pipe.recv())
    finally:
        child.end()


class Workers:
    """Identical worker processes, ended when the ``with`` block is left."""

    def __init__(self, size: int, url: URL, inventory: Remote, shipping: Remote, variant: str) -> None:
        self._arguments = (url, inventory, shipping, variant)
        self._children = [Child.start(worker.main, *self._arguments) for _ in range(size)]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for child in self._children:
            child.end() if error is None else child.kill()

    def kill_one(self) -> None:
        """Kill a random worker, and start another in its place."""
        index = random.randrange(len(self._children))
        self._children[index].kill()
        self._children[index] = Child.start(worker.main, *self._arguments)

    def check(self) -> None:
        """Raise RuntimeError if a worker has ended unexpectedly."""
        if not all(child.process.is_alive() for child in self._children):
            raise RuntimeError("a worker ended unexpectedly")
