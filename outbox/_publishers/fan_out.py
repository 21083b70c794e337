"""A batch that goes to several publishers: each message is one delivery for each of them."""

import operator
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from inbox_outbox_base.monitoring.events import describe
from inbox_outbox_base.words.outgoing import (
    ACCEPTED,
    Accepted,
    Envelope,
    Failed,
    Outcome,
    Refused,
    Unavailable,
    Unknown,
    identity_of,
)

from .outcomes import as_outcome

Settled: TypeAlias = Accepted | Refused

_MOST_SETTLED = 100_000
"""The most messages whose settled deliveries are remembered; beyond that the oldest are forgotten, and these
are only sent again."""


class SettledDeliveries:
    """Remembers which deliveries of unfinished messages were accepted or refused. Threads share it."""

    def __init__(self) -> None:
        self._settled: OrderedDict[tuple[object, ...], dict[int, Settled]] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, message: Envelope) -> dict[int, Settled]:
        """The settled deliveries of a message, by the publisher's place in its route."""
        with self._lock:
            return dict(self._settled.get(identity_of(message), {}))

    def keep(self, message: Envelope, settled: Mapping[int, Settled]) -> None:
        """Remember these deliveries of a message, and no others."""
        with self._lock:
            self._settled.pop(identity_of(message), None)
            if settled:
                self._settled[identity_of(message)] = dict(settled)
            while len(self._settled) > _MOST_SETTLED:
                self._settled.popitem(last=False)


@dataclass(slots=True)
class Part:
    """The part of a batch for one publisher, and its answers."""

    publisher: Any
    places: list[int] = field(default_factory=list)
    """Where its messages are in the batch."""
    messages: list[Envelope] = field(default_factory=list)
    answers: list[Any] = field(default_factory=list)
    """As the publisher gave them: outcomes in turn, or pairs of a place and an outcome."""
    error: Exception | None = None
    """What the publisher raised."""

    def batch(self) -> list[Envelope]:
        """The messages, for the publisher alone: whatever it does to the list or to the headers, neither the
        next publisher nor the answers' places change."""
        return [replace(message, headers=dict(message.headers)) for message in self.messages]

    @property
    def is_answered_too_often(self) -> bool:
        """Whether there are more answers than messages: more of them would not help."""
        return len(self.answers) > len(self.messages)

    def outcomes(self) -> list[Outcome]:
        """An outcome for each message of the part; messages without an answer are unknown."""
        silence = "the publisher gave no answer" if self.error is None else describe(self.error)
        found: dict[int, Any] = {}
        turn = iter(range(len(self.messages)))
        for answer in self.answers:
            is_pair = isinstance(answer, tuple) and len(answer) == 2
            place, outcome = answer if is_pair else (next(turn, -1), answer)
            try:  # whatever it is, the other publishers go on
                number = operator.index(place)
            except Exception:  # noqa: BLE001 - it is no number
                number = -1
            if number in found or number not in range(len(self.messages)):
                return [Unknown("the publisher gave an answer to no message")] * len(self.messages)
            found[number] = outcome
        return [as_outcome(found.get(place, Unknown(silence))) for place in range(len(self.messages))]


class FanOut:
    """One batch, and the known outcomes of its deliveries."""

    def __init__(
        self, batch: Sequence[Envelope], publishers: Sequence[Any], settled: SettledDeliveries
    ) -> None:
        self._batch = batch
        self._publishers = publishers
        self._settled = settled
        self._outcomes: list[dict[int, Outcome]] = [{} for _ in batch]
        """By the publisher's place in its route, for each message."""

    def parts(self) -> Iterator[Part]:
        """A part for each publisher with a message that it has neither accepted nor refused. Before the next
        part is made, the answers to this one are recorded."""
        settled = [self._settled.of(message) for message in self._batch]
        for number, publisher in enumerate(self._publishers):
            part = Part(publisher)
            refused = set[str | None]()
            for place, message in enumerate(self._batch):
                known = settled[place].get(number)
                if known is not None:
                    self._outcomes[place][number] = known
                    refused |= {message.key} if isinstance(known, Refused) else set()
                elif message.key is not None and message.key in refused:
                    self._outcomes[place][number] = Unavailable("behind a refused message of its key")
                else:
                    part.places.append(place)
                    part.messages.append(message)
            if part.messages:
                yield part
                self._record(number, part)

    def _record(self, number: int, part: Part) -> None:
        for place, outcome in zip(part.places, part.outcomes(), strict=True):
            self._outcomes[place][number] = outcome
            if isinstance(outcome, Settled):
                message = self._batch[place]
                self._settled.keep(message, self._settled.of(message) | {number: outcome})

    def outcomes(self) -> list[Outcome]:
        """The outcome of each message, once all parts have their answers."""
        return [self._combined(*each) for each in zip(self._batch, self._outcomes, strict=True)]

    def _combined(self, message: Envelope, outcomes: dict[int, Outcome]) -> Outcome:
        """`Accepted` or `Refused` once all publishers have settled it; until then, the others' outcome."""
        waiting = [each for each in outcomes.values() if not isinstance(each, Settled)]
        if waiting:
            return _still_waiting(waiting, self._reason(outcomes))
        accepted = {number: ACCEPTED for number, each in outcomes.items() if isinstance(each, Accepted)}
        if len(accepted) == len(outcomes):
            self._settled.keep(message, {})
            return ACCEPTED
        # If an operator sends the dead letter again, it goes to the publishers that refused it.
        self._settled.keep(message, accepted)
        return Refused(self._reason(outcomes))

    def _reason(self, outcomes: Mapping[int, Outcome]) -> str:
        return "; ".join(
            f"publisher {number + 1} ({type(publisher).__name__}): {_in_words(outcomes[number])}"
            for number, publisher in enumerate(self._publishers)
        )


def _in_words(outcome: Outcome) -> str:
    match outcome:
        case Accepted():
            return "accepted"
        case Unavailable():
            return f"unavailable: {outcome.reason}"
        case _:
            return f"{type(outcome).__name__.lower()}: {outcome.reason}"


def _still_waiting(outcomes: Sequence[Outcome], reason: str) -> Outcome:
    unavailable = [each for each in outcomes if isinstance(each, Unavailable)]
    if len(unavailable) < len(outcomes):
        return Unknown(reason)
    delays = [each.retry_after for each in unavailable if each.retry_after is not None]
    kind = Failed if all(isinstance(each, Failed) for each in unavailable) else Unavailable
    return kind(reason, max(delays) if len(delays) == len(unavailable) else None)
