"""Stopped messages: those that wait for somebody, by cause."""

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any

import inbox
import outbox
from inbox import Count, Listing, Record, Status
from inbox_outbox_base.words.deciding import Place as SeenPlace
from inbox_outbox_base.words.deciding import packed, unpacked
from outbox import MessageState, StoredMessage

from ._pages import WITHIN, Asked, PagePart, read

OUTBOX, INBOX = "outbox", "inbox"
OUTBOX_STATES = (MessageState.DEAD, MessageState.HELD)
INBOX_STATES = (Status.DEAD, Status.HALTED)
MOST = 1_000
"""The most messages of a state that are read, the oldest."""
_LEAST = 20
"""The messages that are read of each consumer at least."""
_LONGEST = 160
_VARYING = re.compile(r"\b[0-9a-fA-F]{8}-[0-9a-fA-F-]{27}\b|\b0x[0-9a-fA-F]+\b|\d+")


@dataclass(frozen=True, slots=True)
class StoppedMessage:
    """One message that waits for somebody."""

    name: str
    """Its id, or in the inbox its key."""
    key: str | None
    error: str
    since: datetime
    kind: str
    seen_place: SeenPlace
    """Where it is, and how it was, for a decision."""
    is_kept: bool = False
    """Whether the inbox keeps it, so that it can be published again."""

    @property
    def seen(self) -> str:
        """Names it, as it is."""
        return packed(self.kind, [self.seen_place])


@dataclass(frozen=True, slots=True)
class Place:
    """Where stopped messages are."""

    half: str
    state: str
    of: str
    """The topic, or the consumer."""
    store: int = 0
    """The number of the store, in the inbox."""


@dataclass(frozen=True, slots=True)
class CauseGroup:
    """Stopped messages of one place that have the same cause."""

    place: Place
    cause: str
    messages: tuple[StoppedMessage, ...]
    is_all: bool
    """Whether there are no more."""

    @property
    def count(self) -> Count:
        """How many there are."""
        return Count(len(self.messages), "exact" if self.is_all else "at least")

    @property
    def seen(self) -> str:
        """Names all of them, as they are."""
        return packed(self.messages[0].kind, [each.seen_place for each in self.messages])

    @property
    def mark(self) -> str:
        """Finds the group again."""
        return hashlib.sha256(self.cause.encode(errors="surrogateescape")).hexdigest()[:16]


def cause_of(error: str | None) -> str:
    """What errors of one cause have in common: the first line, without numbers and ids."""
    first = (error or "").strip().partition("\n")[0]
    return _VARYING.sub("#", first)[:_LONGEST] or "no error is stored"


def merged(seen: Iterable[str]) -> str:
    """One `seen` for the messages of several, which came with listings of one kind.

    Raises:
        ValueError: they did not.
    """
    found = [[*unpacked(each)] for each in seen]
    kinds = {kind for kind, *_ in found}
    if len(kinds) != 1:
        raise ValueError("messages of one kind were expected")
    return packed(kinds.pop(), [place for _, *places in found for place in places])


def named(seen: str, half: str) -> list[str]:
    """The ids, or in the inbox the keys, of what a `seen` names.

    Raises:
        ValueError: it did not come from a listing.
    """
    _, *places = unpacked(seen)
    try:
        return [f"{place[2 if half == OUTBOX else 1]}" for place in places]
    except (LookupError, TypeError):
        raise ValueError("it did not come with a listing") from None


def each_seen(listing: Listing[Any]) -> Iterator[str]:
    """For each message of a listing, what names it alone."""
    if listing:
        kind, *places = unpacked(listing.seen)
        for place in places:
            yield packed(kind, [place])


def stopped_at(asked: Asked, place: Place) -> list[CauseGroup]:
    """The messages of one place, the oldest ones, by cause."""
    return _grouped(asked, place, _listed(asked, place, MOST), MOST)


def stopped(asked: Asked, topic: str | None, consumer: str | None, store: int) -> PagePart[list[CauseGroup]]:
    """All groups, or those of a topic or a consumer; the largest first. Further stores are asked only if one
    is named: Redis reads every record."""
    groups = list[CauseGroup]()
    errors = list[str]()
    for place, most in _further(store) if store else _places(asked, topic, consumer):
        part = read(partial(_listed, asked, place, most), None)
        if part.value is not None:
            groups += _grouped(asked, place, part.value, most)
        elif part.error is not None:
            errors.append(part.error)
    groups.sort(key=lambda each: (-len(each.messages), each.place.of, each.cause))
    return PagePart(groups, "; ".join(dict.fromkeys(errors)) or None)


def _further(store: int) -> Iterator[tuple[Place, int]]:
    for status in INBOX_STATES:
        yield Place(INBOX, status.value, "", store), MOST


def _places(asked: Asked, topic: str | None, consumer: str | None) -> Iterator[tuple[Place, int]]:
    """What has to be read, and how many messages: nothing is asked of which there is none."""
    halves = asked.halves
    if halves.outbox is not None and consumer is None:
        for state in OUTBOX_STATES:
            if not _is_none(getattr(halves.outbox, state.value)):
                yield Place(OUTBOX, state.value, topic or ""), MOST
    if halves.inbox is not None and topic is None:
        its = [
            Place(INBOX, status.value, each.consumer)
            for each in halves.inbox.consumers
            for status in INBOX_STATES
            if consumer in (None, each.consumer) and not _is_none(getattr(each, status.value))
        ]
        for place in its:
            yield place, max(_LEAST, MOST // len(its))


Found = Listing[StoredMessage] | Listing[Record]


def _listed(asked: Asked, place: Place, most: int) -> Found:
    """The oldest messages of a place; without a name, those of all topics or consumers."""
    site, of = asked.site, place.of or None
    if place.half == INBOX:
        store = site.records[place.store]
        return inbox.list_messages(store, consumer=of, status=place.state, limit=most)
    return outbox.peek(site.reading, most, topic=of, state=place.state, within=WITHIN, schema=site.schema)


def _is_none(count: Count) -> bool:
    return not count.number and count.precision == "exact"


def _grouped(asked: Asked, place: Place, found: Found, most: int) -> list[CauseGroup]:
    is_all = len(found) < most and not (place.state == MessageState.HELD and asked.is_long)
    by_cause: dict[tuple[str, str], list[StoppedMessage]] = {}
    if not found:
        return []
    every: list[StoredMessage | Record] = [*found]
    kind, *places = unpacked(found.seen)
    for each, seen in zip(every, places, strict=True):
        if isinstance(each, Record):
            of, name, since = each.consumer, each.key, each.updated_at
        else:
            of, name, since = each.topic, each.id, each.dead_at or each.created_at
        is_kept = isinstance(each, Record) and each.delivery is not None
        message = StoppedMessage(name, each.key, each.error or "", since, kind, seen, is_kept)
        by_cause.setdefault((of, cause_of(each.error)), []).append(message)
    return [
        CauseGroup(replace(place, of=of), cause, tuple(messages), is_all)
        for (of, cause), messages in by_cause.items()
    ]
