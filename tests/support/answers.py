"""A publisher's outcomes for a batch, as a list."""

from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any

from outbox import Envelope, Outcome


def published(publisher: Any, batch: Sequence[Envelope]) -> list[Outcome]:
    """Send a batch and return the outcomes in the order of the messages, whatever order they arrive in."""
    return _in_order(publisher.send(batch))


async def published_awaited(publisher: Any, batch: Sequence[Envelope]) -> list[Outcome]:
    """`published` for an asynchronous publisher."""
    answers = publisher.send(batch)
    return _in_order([each async for each in answers] if hasattr(answers, "__aiter__") else await answers)


def _in_order(answers: Iterable[Any]) -> list[Outcome]:
    pairs = [each if isinstance(each, tuple) else (place, each) for place, each in enumerate(answers)]
    pairs.sort(key=itemgetter(0))
    assert [place for place, _ in pairs] == list(range(len(pairs))), "a message has no answer, or several"
    return [outcome for _, outcome in pairs]
