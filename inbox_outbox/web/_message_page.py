"""The way of a message: through the outbox, the broker and the inbox."""

import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import inbox
import outbox
from inbox import Message, Record, Status
from inbox.schema import tables
from inbox_outbox_base.databases.registry import looking
from outbox import SentRecord, StoredMessage, TracedMessage

from ._causes import each_seen
from ._pages import TOO_SLOW, Asked, Page, PagePart, missing, outcome_of, read, read_all
from ._sites import SECONDS

_MOST = 20
"""Messages of one key."""
_KEYS = 5
"""Keys and ids that are looked up in the inbox."""
_LONGEST_ID = 255
_NOT_BY_ID = "a message with this id that waits for a relay was not found within"
_RETRIED = ("dead", "held", "waiting", "unknown")
_OF_STATUS = {
    Status.DEAD: ("retry", "discard"),
    Status.FAILED: ("retry", "discard"),
    Status.HALTED: ("resolve", "discard"),
    Status.CONSUMING: ("release",),
}
"""What can be decided about a message of status-table mode."""

_log = logging.getLogger("inbox.web")


@dataclass(frozen=True, slots=True)
class ShownRecord:
    """A message of status-table mode on the page."""

    record: Record
    store: int
    seen: str
    topic: str | None
    """Where it came from, if it is kept."""
    actions: tuple[str, ...]
    steps: tuple[tuple[str, str], ...]
    """Their names and states."""
    history: tuple[dict[str, Any], ...]
    payload: str | None
    result: str | None
    """What `show` makes of the two; None if they are not shown."""
    locked: PagePart[str | None]
    """Who else has locked its row, and since when."""


def message(asked: Asked) -> Page:
    """Everything that is known about a key, or an id."""
    sought = asked.query.get("q", "")
    if not sought:
        return missing("The address names no key or id.")
    line, sent = _in_outbox(asked, sought)
    keys = dict.fromkeys([sought, *_keys_of(line.value, sent.value)])
    taken = read_all(lambda: _taken(asked, [*keys][:_KEYS]))
    records = read_all(lambda: _records(asked, [*keys][:_KEYS]))
    values = {
        "sought": sought,
        "line": line,
        "sent": sent,
        "taken": taken,
        "records": records,
        "actions": {each.message.id: _actions(asked, each) for each in line.value},
        "payloads": {each.message.id: payload for each in line.value if (payload := _payload(asked, each))},
        "can_show": asked.visitor.may("show") and asked.site.show is not None,
        "is_shown": asked.query.get("payload") == "1",
        "has_more": len(keys) > _KEYS
        or (asked.halves.inbox is not None and asked.halves.inbox.has_more_consumers),
        "further": range(1, len(asked.site.records)),
        "most": _MOST,
        **outcome_of(asked),
    }
    return Page("message.html", sought, "", values, is_live=False)


def _in_outbox(asked: Asked, sought: str) -> tuple[PagePart[list[TracedMessage]], PagePart[list[SentRecord]]]:
    """By key, then by id: that may read the whole outbox."""
    if asked.halves.outbox is None:
        return PagePart([]), PagePart([])
    reading, schema = asked.site.reading, asked.site.schema
    line = read_all(lambda: outbox.trace(reading, key=sought, limit=_MOST, schema=schema))
    sent = PagePart(list[SentRecord]())
    if len(sought.encode(errors="replace")) <= _LONGEST_ID:
        sent = read_all(lambda: outbox.sent_messages(reading, message_id=sought, schema=schema))
        if not line.value and not line.error and not sent.value:
            line = read_all(lambda: outbox.trace(reading, message_id=sought, schema=schema))
            if line.error == TOO_SLOW:
                line = PagePart([], f"{_NOT_BY_ID} {SECONDS:.0f} s: search for its key, which has an index")
    if not line.value and not sent.value and not sent.error:
        sent = read_all(lambda: outbox.sent_messages(reading, key=sought, limit=_MOST, schema=schema))
    return line, sent


def _keys_of(line: Sequence[TracedMessage], sent: Sequence[SentRecord]) -> Iterator[str]:
    """What an inbox may know these messages by."""
    messages: list[StoredMessage | SentRecord] = [*(each.message for each in line), *sent]
    for each in messages:
        yield from ([each.id] if each.key is None else [each.key, each.id])


def _actions(asked: Asked, each: TracedMessage) -> list[str]:
    state = each.message.state.value
    possible = ("retry", "drop") if state in _RETRIED else ("drop",)
    return [action for action in possible if asked.visitor.may(action)]


def _payload(asked: Asked, each: TracedMessage) -> str | None:
    """The payload of a message of the outbox, where it is to be shown."""
    message = each.message
    if not _may_see(asked):
        return None
    site = asked.site
    payload = outbox.read_payload(site.reading, message.id, key=message.key, schema=site.schema)
    return _shown(asked, message.topic, f"payload of {message.id!r} of topic", payload)


def _taken(asked: Asked, keys: Sequence[str]) -> Iterator[Message]:
    """The keys in the inboxes of the exactly-once path."""
    for consumer in () if asked.halves.inbox is None else asked.halves.inbox.consumers:
        if consumer.policy is None or consumer.policy.mode != "status":
            for key in keys:
                found = inbox.show(asked.site.reading, consumer.consumer, key, schema=asked.site.schema)
                if found is not None:
                    yield found


def _records(asked: Asked, keys: Sequence[str]) -> Iterator[ShownRecord]:
    """The same of status-table mode; a further store is asked only if the address names it."""
    for consumer in () if asked.halves.inbox is None else asked.halves.inbox.consumers:
        if consumer.policy is None or consumer.policy.mode != "exactly-once":
            for key in keys:
                yield from _listed(asked, 0, consumer.consumer, key)
    store = asked.query.get("store", "")
    if store in {str(each) for each in range(1, len(asked.site.records))}:
        yield from _listed(asked, int(store), None, keys[0])


def _listed(asked: Asked, store: int, consumer: str | None, key: str) -> Iterator[ShownRecord]:
    found = inbox.list_messages(asked.site.records[store], consumer=consumer, key=key, limit=_MOST)
    for record, seen in zip(found, each_seen(found), strict=True):
        allowed = [each for each in _OF_STATUS.get(record.status, ()) if asked.visitor.may(each)]
        actions = allowed if record.delivery is None else asked.with_delivery(allowed, store)
        yield ShownRecord(
            record,
            store,
            seen,
            None if record.delivery is None else json.loads(record.delivery)["topic"],
            tuple(actions),
            tuple((name, step["state"]) for name, step in json.loads(record.steps or "{}").items()),
            tuple(reversed(json.loads(record.history or "[]"))),
            _shown(asked, record.consumer, f"payload of {record.key!r} of consumer", record.payload),
            _shown(asked, record.consumer, f"result of {record.key!r} of consumer", _encoded(record.result)),
            PagePart(None) if store or record.status is Status.CONSUMED else _lock_of(asked, record),
        )


def _lock_of(asked: Asked, record: Record) -> PagePart[str | None]:
    """Who else has locked the row of a message of status-table mode."""
    key = {"consumer": record.consumer, "key": record.key}
    nothing: tuple[str | None, str | None] = None, None

    def look() -> tuple[str | None, str | None]:
        with asked.site.reading.begin() as connection:
            looker = looking(connection.dialect.name)
            return looker.locked_by(connection, tables(asked.site.schema).status, key)

    found = read(look, nothing)
    holder, unseen = found.value
    return PagePart(holder, found.error or unseen)


def _encoded(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def _may_see(asked: Asked) -> bool:
    return asked.query.get("payload") == "1" and asked.visitor.may("show")


def _shown(asked: Asked, of: str, what: str, content: bytes | None) -> str | None:
    """What `show` makes of it, for somebody who may see it and has asked; the log says who has."""
    show, user = asked.site.show, asked.visitor.name
    if content is None or show is None or not _may_see(asked):
        return None
    _log.info("%s looks at the %s %r", user, what, of)
    return show(user, of, content)
