"""An asynchronous publisher for tests that are not asynchronous."""

import inspect
from collections.abc import AsyncIterable, Iterator, Sequence
from typing import Any

from inbox_outbox_base.words.outgoing import Envelope
from outbox._publishers.loop_thread import LoopThread


class Blocking:
    """A `Publisher` that calls an asynchronous one, in an event loop of its own. Other attributes are the
    publisher's."""

    def __init__(self, publisher: Any) -> None:
        self._publisher = publisher
        self._thread = LoopThread("conformance suite")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._publisher, name)

    def __repr__(self) -> str:
        return repr(self._publisher)

    def send(self, batch: Sequence[Envelope]) -> Iterator[Any]:
        """Send a batch, whichever way the publisher answers."""
        yield from self._thread.iterate(self._answers(batch))

    async def _answers(self, batch: Sequence[Envelope]) -> Any:
        answers = self._publisher.send(batch)
        if isinstance(answers, AsyncIterable):
            async for answer in answers:
                yield answer
        else:
            for answer in await answers:
                yield answer

    def check(self, lease: float) -> None:
        """Check the settings."""
        self._finish(getattr(self._publisher, "check", None), lease)

    def close(self) -> None:
        """Close the publisher; the loop goes on."""
        self._finish(getattr(self._publisher, "close", None))

    def end(self) -> None:
        """End the loop."""
        self._thread.close()

    def _finish(self, method: Any, *arguments: Any) -> None:
        async def call() -> None:
            result = method(*arguments)
            if inspect.isawaitable(result):
                await result

        if method is not None:
            self._thread.run(call())


def is_asynchronous(publisher: Any) -> bool:
    """Whether its `send` is awaited."""
    return inspect.iscoroutinefunction(publisher.send) or inspect.isasyncgenfunction(publisher.send)
