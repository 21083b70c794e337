"""The router for asynchronous publishers."""

import inspect
from collections.abc import AsyncGenerator, AsyncIterable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from typing import Any

from inbox_outbox_base.calls.signals import FAILURES, as_failure
from inbox_outbox_base.words.outgoing import Envelope, Outcome

from .fan_out import FanOut, Part
from .publisher import Answer, AsyncPublisher
from .router import RouterBase, failed


class AsyncRouter(RouterBase):
    """`Router` for an `AsyncRelay`: the same with asynchronous publishers, awaited."""

    _is_async = True

    def __init__(self, routes: Mapping[str, AsyncPublisher | Sequence[AsyncPublisher]]) -> None:
        super().__init__(routes)

    async def check(self, lease: float) -> None:
        """See `Router.check`."""
        for publisher in self._routes.publishers:
            if callable(method := getattr(publisher, "check", None)):
                await _finished(method(lease))

    async def send(self, batch: Sequence[Envelope]) -> AsyncGenerator[Answer]:
        """See `Router.send`."""
        publishers = self._routes.of(batch[0].topic) if batch else ()
        if len(publishers) == 1:
            async with aclosing(_answers(publishers[0], batch)) as answers:
                async for answer in answers:
                    yield answer
            return
        for outcome in await self._to_all(batch, publishers) if publishers else self._without_route(batch):
            yield outcome

    async def _to_all(self, batch: Sequence[Envelope], publishers: Sequence[Any]) -> list[Outcome]:
        fan_out = FanOut(batch, publishers, self._settled)
        for part in fan_out.parts():
            await _send(part)
        return fan_out.outcomes()

    async def close(self) -> None:
        """See `Router.close`."""
        async with AsyncExitStack() as closing:
            for publisher in self._routes.publishers:
                if callable(method := getattr(publisher, "close", None)):
                    closing.push_async_callback(_closed, method)


async def _answers(publisher: Any, batch: Sequence[Envelope]) -> AsyncGenerator[Answer]:
    """A publisher's answers, in whichever way it gives them."""
    given = publisher.send(batch)
    if not isinstance(given, AsyncGenerator):
        for answer in [each async for each in given] if isinstance(given, AsyncIterable) else await given:
            yield answer
        return
    async with aclosing(given):
        async for answer in given:
            yield answer


async def _send(part: Part) -> None:
    try:
        async with aclosing(_answers(part.publisher, part.batch())) as answers:
            async for answer in answers:
                part.answers.append(answer)
                if part.is_answered_too_often:
                    break
    except FAILURES as error:
        failed(part, as_failure(error))


async def _closed(close: Any) -> None:
    await _finished(close())


async def _finished(result: Any) -> Any:
    return await result if inspect.isawaitable(result) else result
