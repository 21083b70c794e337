"""Convert a Kafka record to a delivery."""

import logging
import operator
from datetime import UTC, datetime

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Message

from inbox._consuming.cloud_events import event_id
from inbox_outbox_base.words.incoming import Delivery

_log = logging.getLogger("inbox.kafka")
_given_headers = operator.methodcaller("headers")
"""Not called as a method: the interpreter has a fast path for methods, where an error of the client crashes
the process."""
_ID = "outbox-id"
_CONTENT_TYPE = "content-type"
_CREATED_AT = "outbox-created-at"
_BYTES = "application/octet-stream"
_LAST = 253_402_300_799_000
"""The last second of the year 9999, in milliseconds."""


def delivery_of(record: Message, attempt: int) -> Delivery:
    """The handler's view of a record.

    A record that did not come through an outbox has Kafka's time. Its id is the source and id of its
    CloudEvent, if it is an event, else its place ("topic-partition-offset"). Of repeated headers the last one
    counts. Bytes of a key or a header that are not UTF-8 become lone surrogates, so that two keys never
    become one; `raw` has the original bytes.
    """
    headers = {name: _text(value) for name, value in headers_of(record)}
    own = {name: headers.pop(name, None) for name in (_ID, _CONTENT_TYPE, _CREATED_AT)}
    key, value = record.key(), record.value()
    content_type = own[_CONTENT_TYPE] or ("" if value is None else _BYTES)
    return Delivery(
        id=own[_ID] or event_id(headers, content_type, value) or _place(record),
        topic=str(record.topic()),
        key=None if key is None else _text(key),
        payload=value,
        content_type=content_type,
        headers=headers,
        attempt=attempt,
        created_at=_created_at(own[_CREATED_AT], record),
        raw=record,
    )


def _place(record: Message) -> str:
    return f"{record.topic()}-{record.partition()}-{record.offset()}"


def headers_of(record: Message) -> list[tuple[str, str | bytes | None]]:
    """Name and value of each header; names may repeat.

    If a name is not UTF-8, there are none: the client cannot read the headers, and a second try would crash
    the process.
    """
    try:
        given = _given_headers(record) or []
    except SystemError:
        record.set_headers([])
        _log.error("%s: headers left out, because the client cannot decode a name", _place(record))
        given = []
    return list(given.items() if isinstance(given, dict) else given)


def place_of(record: Message) -> tuple[str, int]:
    """Topic and partition."""
    return str(record.topic()), int(record.partition() or 0)


def _text(value: str | bytes | None) -> str:
    return value.decode(errors="surrogateescape") if isinstance(value, bytes) else value or ""


def _created_at(header: str | None, record: Message) -> datetime | None:
    try:
        if header is not None and (created := datetime.fromisoformat(header)).tzinfo is not None:
            return created
    except ValueError:
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
