"""Checks and serialises messages, before any of them is written."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import fields
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Any

from inbox_outbox_base.checks import outbox_options
from inbox_outbox_base.errors.outbox import InvalidMessage
from inbox_outbox_base.words.outgoing import Draft, Message

from .cloud_events import Mode, checked_type, cloud_events
from .context import trace_context
from .ids import new_id
from .serializer import Serializer, checked, serialize

_fields = attrgetter(*(field.name for field in fields(Message)))


class Drafts:
    """Turns messages into rows; the arguments are those of `Outbox`.

    Raises:
        InvalidOption: an argument is invalid.
    """

    def __init__(
        self,
        *,
        serializer: Serializer | None,
        largest_payload: int,
        trace: bool,
        cloudevents: str | None,
        event_type: str | None,
        event_mode: Mode,
    ) -> None:
        self._serialize: Serializer = serialize if serializer is None else checked(serializer)
        self._largest_payload = outbox_options.count("largest_payload", largest_payload)
        self._trace = outbox_options.flag("trace", trace)
        self._events = cloud_events(cloudevents, event_type, event_mode)

    def of(self, messages: Iterable[Message]) -> list[Draft]:
        """One draft for each message.

        Raises:
            InvalidMessage: a message exceeds a limit or cannot be stored.
        """
        trace = trace_context() if self._trace else {}
        return [self._draft(trace, *_fields(outbox_options.message(each))) for each in messages]

    def one(self, *fields: Any) -> Draft:
        """The draft of one message: its fields in the order of `Message`, because to make one takes longer
        than all checks.

        Raises:
            InvalidMessage: it exceeds a limit or cannot be stored.
        """
        return self._draft(trace_context() if self._trace else {}, *fields)

    def _draft(
        self,
        trace: dict[str, str],
        topic: str,
        payload: Any,
        key: str | None,
        own_headers: Mapping[str, str],
        delay: float | timedelta | None,
        available_at: datetime | None,
        content_type: str | None,
        own_id: str | None,
        event_type: str | None,
    ) -> Draft:
        topic, key = outbox_options.topic(topic), outbox_options.key(key)
        payload, content_type = self._payload(payload, key, content_type)
        message_id = new_id() if own_id is None else outbox_options.message_id(own_id)
        checked_type(event_type, self._events)
        headers = trace
        if self._events is not None:
            headers = headers | self._events.headers(topic, key, event_type, message_id)
        if own_headers:
            headers = headers | outbox_options.headers(own_headers)
        if self._events is not None:
            payload, content_type, headers = self._events.wrapped(payload, content_type, headers)
        if len(payload) > self._largest_payload:
            raise InvalidMessage(
                f"payload of {len(payload):,} bytes: expected at most "
                f"largest_payload={self._largest_payload:,}"
            )
        row: dict[str, Any] = {
            "id": message_id,
            "topic": topic,
            "key": key,
            "payload": payload,
            "content_type": content_type,
            "headers": encoded(headers) if headers else None,
        }
        if own_id is not None:
            row["own_id"] = True
        return Draft(row, outbox_options.due(delay, available_at))

    def _payload(self, given: Any, key: str | None, content_type: str | None) -> tuple[bytes, str]:
        """The payload's bytes and content type; the latter is empty for a tombstone."""
        if given is None:
            return _tombstone(key, content_type)
        payload, its_type = self._serialize(given)
        if content_type is not None:
            its_type = content_type
        return payload, outbox_options.text("content_type", its_type, 255)


def _tombstone(key: str | None, content_type: str | None) -> tuple[bytes, str]:
    if key is None:
        raise InvalidMessage("payload=None, key=None: a tombstone needs the key that it deletes")
    if content_type is not None:
        raise InvalidMessage(f"payload=None, content_type={content_type!r:.80}: expected None")
    return b"", ""


def encoded(headers: dict[str, str]) -> str:
    """Headers as a row has them.

    Raises:
        InvalidMessage: they are too large.
    """
    text = json.dumps(headers, ensure_ascii=False, separators=(",", ":"))
    size = len(text.encode())
    if size > outbox_options.LARGEST_HEADERS:
        raise InvalidMessage(
            f"headers of {size:,} bytes: expected at most {outbox_options.LARGEST_HEADERS:,}"
        )
    return text
