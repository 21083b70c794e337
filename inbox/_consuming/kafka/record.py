"""Convert a Kafka record to a delivery."""

import logging
import operator
from datetime import UTC, datetime
from hashlib import blake2b
from itertools import chain

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Message

from inbox._consuming.cloud_events import event_id
from inbox._consuming.text import readable, readable_key
from inbox_outbox_base.words.incoming import Delivery
from inbox_outbox_base.words.redelivered import as_first

Headers = list[tuple[str, str | bytes | None]]

_log = logging.getLogger("inbox.kafka")
_given_headers = operator.methodcaller("headers")
"""Not called as a method: the interpreter has a fast path for methods, where an error of the client crashes
the process."""
ID, CREATED_AT = "outbox-id", "outbox-created-at"
DEAD_ID, DEAD_CREATED_AT = "dead-letter-id", "dead-letter-created-at"
"""What a dead letter keeps of a message that is not an outbox's, and brings back with it."""
_CONTENT_TYPE = "content-type"
_OWN = (ID, DEAD_ID, _CONTENT_TYPE, CREATED_AT, DEAD_CREATED_AT)
_BYTES = "application/octet-stream"
_LAST = 253_402_300_799_000
"""The last second of the year 9999, in milliseconds."""


def delivery_of(record: Message, attempt: int) -> Delivery:
    """The handler's view of a record.

    A record that did not come through an outbox has Kafka's time. Its id is the source and id of its
    CloudEvent, if it is an event, else its place and a digest of its contents. One that was a dead letter has
    the id and the time that it had before. Of repeated headers the last one counts. A key or a header that no
    database would take becomes readable text; `raw` has its bytes.
    """
    given = headers_of(record)
    headers = {readable(name): readable(value or "") for name, value in given}
    own = {name: headers.pop(name, None) for name in _OWN}
    own_id = own[ID] or own[DEAD_ID]
    key, value = record.key(), record.value()
    content_type = own[_CONTENT_TYPE] or ("" if value is None else _BYTES)
    found = Delivery(
        id=own_id or event_id(headers, content_type, value) or _own_id(record, given),
        topic=str(record.topic()),
        key=None if key is None else readable_key(key, is_of_outbox=bool(own[ID])),
        payload=value,
        content_type=content_type,
        headers=headers,
        attempt=attempt,
        created_at=_created_at(own[CREATED_AT] or own[DEAD_CREATED_AT], record),
        raw=record,
        place=f"{record.topic()} [{record.partition()}] at {record.offset()}",
    )
    return as_first(found)


def place(record: Message) -> str:
    """Topic, partition and offset, in one word."""
    return f"{record.topic()}-{record.partition()}-{record.offset()}"


def _own_id(record: Message, headers: Headers) -> str:
    """The place of a record and a digest of its time and contents. A place alone is no identity: a topic that
    is created again, another cluster or a restored broker has other records in the same places."""
    digest = blake2b(repr(record.timestamp()).encode(), digest_size=16)
    for part in (record.key(), record.value(), *chain.from_iterable(headers)):
        content = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        digest.update(b"-" if content is None else b"%d:" % len(content))
        digest.update(content or b"")
    return f"{place(record)}-{digest.hexdigest()}"


def headers_of(record: Message) -> Headers:
    """Name and value of each header; names may repeat.

    If a name is not UTF-8, there are none: the client cannot read the headers, and a second try would crash
    the process.
    """
    try:
        given = _given_headers(record) or []
    except SystemError:
        record.set_headers([])
        _log.error("%s: headers left out, because the client cannot decode a name", place(record))
        given = []
    return list(given.items() if isinstance(given, dict) else given)


def place_of(record: Message) -> tuple[str, int]:
    """Topic and partition."""
    return str(record.topic()), int(record.partition() or 0)


def _created_at(header: str | None, record: Message) -> datetime | None:
    try:
        if header is not None and (created := datetime.fromisoformat(header)).tzinfo is not None:
            return created.astimezone(UTC)
    except (ValueError, OverflowError):
        pass  # written by somebody else
    kind, milliseconds = record.timestamp()
    return None if kind == TIMESTAMP_NOT_AVAILABLE else _time(milliseconds)


def _time(milliseconds: int) -> datetime | None:
    """The time of any number that a producer wrote, such as microseconds; None if it is not a time."""
    while milliseconds > _LAST:
        milliseconds //= 1_000
    try:
        return datetime.fromtimestamp(milliseconds / 1_000, UTC)
    except (ValueError, ArithmeticError, OSError):
        return None  # before the year 1
