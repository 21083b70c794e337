"""One batch on its way to JetStream."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Sequence

from inbox_outbox_base.brokers.nats.client import FAILURES, Client, Msg, text_of
from inbox_outbox_base.brokers.nats.message import LONGEST_HEADERS, headers_of, reason_not_a_subject, size_of
from inbox_outbox_base.words.outgoing import Accepted, Envelope, Outcome, Refused, Unavailable, Unknown
from outbox._publishers.key_chains import Chain, chains_of

from .answers import outcome_of
from .link import NatsLink

_MOST = 500
"""The most messages without an answer at the same time."""
_MOST_BYTES = 4 * 1_024 * 1_024
"""The most bytes of theirs, unless one message has more."""
_LOOK = 0.2
"""Seconds after which the connection is looked at, if nothing else happens: the client does not always say
that it has broken."""


class NatsSending:
    """Publishes the messages of a batch on a connection that nothing else uses in the meantime.

    Messages of one key follow one another: each leaves when the previous one has been accepted.

    Args:
        last_start: the time, by the event loop's clock, after which no message leaves.
        end: the time when messages without an answer are given up.
    """

    def __init__(self, link: NatsLink, batch: Sequence[Envelope], *, last_start: float, end: float) -> None:
        self._link = link
        self._batch = batch
        self._last_start = last_start
        self._end = end
        self._ready = deque(chains_of(batch))
        self._sent: dict[str, tuple[Chain, int]] = {}
        """What has no answer, by the answer's subject: its chain and its size."""
        self._size = 0
        self._arrived: list[tuple[str, Msg]] = []
        self._news = asyncio.Event()
        self._now = asyncio.get_running_loop().time
        self._hindrance: str | None = None
        """Why it begins no further messages."""
        self.is_answered = True
        """Whether every message that was sent has been answered so far."""

    def begin_no_more(self) -> None:
        """Begin no further messages; those that were sent are waited for."""
        self._hindrance = "not sent: the relay is stopping"

    async def answers(self, client: Client) -> AsyncGenerator[tuple[int, Outcome]]:
        """Send, and yield places and outcomes as the answers arrive."""
        self._link.listen(self._note, self._news.set)
        self.is_answered = False
        given_up = False
        while self._ready or self._sent:
            while self._ready and self._has_room():
                for ending in await self._start(client, self._ready.popleft()):
                    yield ending
            if self._sent:
                await self._wait()
                for ending in self._taken():
                    yield ending
            doubt = self._outcome_of_the_rest()
            given_up |= isinstance(doubt, Unknown)
            if doubt is not None:
                for chain, _ in self._forget_all():
                    for ending in self._ended(chain, doubt):
                        yield ending
        self.is_answered = not given_up

    def _note(self, subject: str, answer: Msg) -> None:
        self._arrived.append((subject, answer))
        self._news.set()

    def _has_room(self) -> bool:
        return len(self._sent) < _MOST and self._size < _MOST_BYTES

    async def _start(self, client: Client, chain: Chain) -> Iterator[tuple[int, Outcome]]:
        """Send a chain's next message; the outcomes, if it cannot be sent."""
        envelope = self._batch[chain[0]]
        if self._hindrance is None and self._now() > self._last_start:
            self._hindrance = "no time was left to send it"
        if self._hindrance is not None:
            return self._ended(chain, Unavailable(self._hindrance))
        try:
            headers = headers_of(envelope)
            size = _checked_size(envelope, size_of(headers), client.max_payload)
        except ValueError as error:
            return self._ended(chain, Refused(str(error)))
        subject = self._link.next_subject()
        try:
            await client.publish(envelope.topic, envelope.payload, reply=subject, headers=headers)
        except FAILURES as error:
            return self._ended(chain, Unavailable(f"not sent: {text_of(error)}"))
        self._sent[subject] = chain, size
        self._size += size
        return iter(())

    async def _wait(self) -> None:
        """Until there is something new, or it is time to look at the connection."""
        try:
            async with asyncio.timeout(min(_LOOK, max(0.0, self._end - self._now()))):
                await self._news.wait()
        except TimeoutError:
            pass
        self._news.clear()

    def _taken(self) -> Iterator[tuple[int, Outcome]]:
        """The outcomes of the answers that have arrived."""
        arrived, self._arrived = self._arrived, []
        for subject, answer in arrived:
            if subject not in self._sent:
                continue  # it came after the time was over
            chain, size = self._sent.pop(subject)
            self._size -= size
            yield from self._ended(chain, outcome_of(answer, self._batch[chain[0]].topic))

    def _outcome_of_the_rest(self) -> Outcome | None:
        """What has become of all messages without an answer; None: they may get one."""
        if not self._sent:
            return None
        if self._link.denied >= len(self._sent):
            # Each publish is answered, allowed or not: these are the ones that are not.
            self._hindrance = self._link.complaint
            return Unavailable(self._link.complaint)
        if not self._link.is_open:
            self._hindrance = "not sent: the connection broke"
            return Unknown("the connection broke before JetStream confirmed it")
        if self._now() >= self._end:
            return Unknown("JetStream did not confirm it in time")
        return None

    def _forget_all(self) -> list[tuple[Chain, int]]:
        sent, self._sent, self._size = self._sent, {}, 0
        return list(sent.values())

    def _ended(self, chain: Chain, outcome: Outcome) -> Iterator[tuple[int, Outcome]]:
        """The outcome of a chain's first message, and of the later ones if they cannot be sent now."""
        yield chain.popleft(), outcome
        if isinstance(outcome, Accepted):
            if chain:
                self._ready.append(chain)
            return
        for place in chain:
            yield place, Unavailable("an earlier message of its key was not accepted")


def _checked_size(envelope: Envelope, headers: int, limit: int) -> int:
    """The size of a message in bytes, as NATS counts it.

    Raises:
        ValueError: no topic of NATS, or too large.
    """
    if reason := reason_not_a_subject(envelope.topic):
        raise ValueError(f"topic={envelope.topic!r}: {reason}")
    if headers > LONGEST_HEADERS:
        raise ValueError(f"{headers} bytes of headers: a stream takes {LONGEST_HEADERS}")
    size = headers + len(envelope.payload)
    if size > limit:
        raise ValueError(f"{size} bytes with its headers: the server takes {limit} (max_payload)")
    return size
