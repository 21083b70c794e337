"""The worker processes, as the broker sees them."""

import multiprocessing
import signal
from dataclasses import dataclass, field
from multiprocessing.connection import Connection as Pipe
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Self

from sqlalchemy import URL

from examples.demo import worker
from examples.demo.handler import Handler
from examples.demo.worker import Answer, Chunk

PATIENCE = 60
"""The most seconds for a worker to start, and to end."""


@dataclass(eq=False)
class Worker:
    """A worker process, and the chunks it has not answered yet."""

    process: BaseProcess
    pipe: Pipe
    is_ready: bool = False
    chunks: dict[int, Chunk] = field(default_factory=dict)

    def give(self, chunk: Chunk) -> None:
        """Give the worker a chunk; it may still be busy with another."""
        self.chunks[chunk.number] = chunk
        self.pipe.send(chunk)

    def hear(self) -> Answer | None:
        """Wait for the next answer; None if it only says that the worker is ready now.

        Raises:
            RuntimeError: the process ended unexpectedly.
        """
        try:
            answer: Answer | None = self.pipe.recv()
        except (EOFError, OSError):
            raise RuntimeError("a worker ended unexpectedly") from None
        self.is_ready = True
        return answer

    def kill(self) -> list[Answer]:
        """Wait for an answer, kill the process before reading it, and return the lost answers.

        An answer is sent after COMMIT: its messages are in the database, but were never acknowledged.
        """
        self.pipe.poll(PATIENCE)
        self.process.kill()
        self.process.join()
        lost: list[Answer] = []
        try:
            while True:
                lost.append(self.pipe.recv())
        except (EOFError, OSError):
            self.pipe.close()
        return lost


class Fleet:
    """Identical worker processes, ended when the ``with`` block is left."""

    def __init__(self, url: URL, handler: Handler, size: int) -> None:
        self._context = multiprocessing.get_context("spawn")
        self._url = url
        self._handler = handler
        self.workers: list[Worker] = []
        try:
            for _ in range(size):
                self.workers.append(self._start())
            for each in self.workers:
                self._until_ready(each)
        except BaseException:
            self._end(grace=0)
            raise

    def replace(self, worker: Worker) -> Worker:
        """Replace a dead worker; the new one is still starting."""
        self.workers[self.workers.index(worker)] = new = self._start()
        return new

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(grace=PATIENCE if error is None else 0)

    def _start(self) -> Worker:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(
            target=worker.main, args=(theirs, self._url, self._handler), daemon=True
        )
        # Ctrl-C is for the broker, which then ends the workers: they start with SIGINT ignored.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            process.start()
        finally:
            signal.signal(signal.SIGINT, before)
        theirs.close()
        return Worker(process, ours)

    def _until_ready(self, worker: Worker) -> None:
        if not worker.pipe.poll(PATIENCE):
            raise RuntimeError("a worker did not start")
        worker.hear()

    def _end(self, grace: float) -> None:
        for each in self.workers:
            each.pipe.close()
        for each in self.workers:
            each.process.join(grace)
            each.process.kill()
            each.process.join()
