"""One batch on its way to a stream."""

from collections.abc import Generator, Iterator, Sequence
from typing import Any

import redis

from inbox_outbox_base.brokers.redis_streams.client import FAILURES, text_of
from inbox_outbox_base.brokers.redis_streams.entry import fields_of
from inbox_outbox_base.calls import clock
from inbox_outbox_base.words.outgoing import (
    ACCEPTED,
    Accepted,
    Envelope,
    Outcome,
    Refused,
    Unavailable,
    Unknown,
)

_MOST_ENTRIES = 500
_MOST_BYTES = 1_000_000
"""How much one transaction of Redis has; other clients wait for it."""

Part = list[tuple[int, dict[Any, Any]]]
"""Places in the batch, and the fields of their messages."""


class RedisSending:
    """Sends the messages of a batch in transactions (MULTI), one after the other: Redis adds all entries of
    one or none. After one that was not accepted, the later ones are not sent.

    Args:
        largest: the most bytes in an entry.
        last_start: the time, by `clock.now`, after which no transaction begins.
    """

    def __init__(self, client: Any, batch: Sequence[Envelope], *, largest: int, last_start: float) -> None:
        self._client = client
        self._batch = batch
        self._largest = largest
        self._last_start = last_start
        self.begins = True
        """Whether it may begin further transactions."""

    def answers(self) -> Generator[tuple[int, Outcome]]:
        """Send, and yield places and outcomes as the answers arrive."""
        left, refused = self._divided()
        yield from refused.items()
        ended: Outcome | None = None
        for part in left:
            ended = ended or self._reason_not_to_begin()
            outcomes = [ended] * len(part) if ended else self._sent([fields for _, fields in part])
            yield from ((place, outcome) for (place, _), outcome in zip(part, outcomes, strict=True))
            if not all(isinstance(each, Accepted) for each in outcomes):
                ended = ended or Unavailable("not sent: earlier messages were not accepted")

    def _divided(self) -> tuple[list[Part], dict[int, Outcome]]:
        """The transactions, and the outcomes of what is not sent."""
        refused: dict[int, Outcome] = {}
        held, parts, size = set[str](), list[Part](), 0
        for place, envelope in enumerate(self._batch):
            if envelope.key in held:
                refused[place] = Unavailable("an earlier message of its key was not accepted")
                continue
            try:
                fields, added = fields_of(envelope, self._largest)
            except ValueError as error:
                refused[place] = Refused(str(error))
                held.update(() if envelope.key is None else (envelope.key,))
                continue
            size += added
            if not parts or len(parts[-1]) == _MOST_ENTRIES or size > _MOST_BYTES:
                parts.append([])
                size = added
            parts[-1].append((place, fields))
        return parts, refused

    def _reason_not_to_begin(self) -> Outcome | None:
        if not self.begins:
            return Unavailable("not sent: the relay is stopping")
        return Unavailable("no time was left to send it") if clock.now() > self._last_start else None

    def _sent(self, entries: list[dict[Any, Any]]) -> list[Outcome]:
        pool = self._client.connection_pool
        try:
            # It connects, and makes sure that the server has not closed the connection meanwhile. Nothing is
            # sent, so without an answer the outcome is Unavailable.
            pool.release(pool.get_connection())
        except FAILURES as error:
            return [Unavailable(f"not sent: {text_of(error)}")] * len(entries)
        if (late := self._reason_not_to_begin()) is not None:
            return [late] * len(entries)
        try:
            return list(map(_outcome_of, self._added(entries)))
        except (redis.ResponseError, redis.BusyLoadingError) as error:
            # It has refused the transaction as a whole. If it was demoted, a new connection may lead to the
            # new primary.
            pool.disconnect(inuse_connections=False)
            return [Unavailable(text_of(error))] * len(entries)
        except FAILURES as error:
            return [Unknown(f"no answer: {text_of(error)}")] * len(entries)

    def _added(self, entries: list[dict[Any, Any]]) -> Iterator[Any]:
        with self._client.pipeline(transaction=True) as pipeline:
            for fields in entries:
                pipeline.xadd(self._batch[0].topic, fields, nomkstream=True)
            yield from pipeline.execute(raise_on_error=False)


def _outcome_of(answer: Any) -> Outcome:
    """What Redis's answer to one XADD means."""
    if isinstance(answer, Exception):
        return Unavailable(text_of(answer))  # such as a key that is no stream
    return Unavailable("there is no such stream") if answer is None else ACCEPTED
