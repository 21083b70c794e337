"""Checks and serialises messages, before any of them is written."""

import json
from collections.abc import Iterable
from typing import Any

from inbox_outbox_base.checks import outbox_options
from inbox_outbox_base.errors.outbox import InvalidMessage
from inbox_outbox_base.words.outgoing import Draft, Message

from .cloud_events import Mode, checked_type, cloud_events
from .context import trace_context
from .ids import new_id
from .serializer import Serializer, checked, serialize


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
        return [self._draft(outbox_options.message(each), trace) for each in messages]

    def _draft(self, message: Message, trace: dict[str, str]) -> Draft:
        topic, key = outbox_options.topic(message.topic), outbox_options.key(message.key)
        payload, content_type = self._payload(message)
        message_id = new_id() if message.id is None else outbox_options.message_id(message.id)
        checked_type(message, self._events)
        headers = trace
        if self._events is not None:
            headers = headers | self._events.headers(message, message_id)
        if message.headers:
            headers = headers | outbox_options.headers(message.headers)
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
        if message.id is not None:
            row["own_id"] = True
        return Draft(row, outbox_options.due(message.delay, message.available_at))

    def _payload(self, message: Message) -> tuple[bytes, str]:
        """The payload's bytes and content type; the latter is empty for a tombstone."""
        if message.payload is None:
            return _tombstone(message)
        payload, content_type = self._serialize(message.payload)
        if message.content_type is not None:
            content_type = message.content_type
        return payload, outbox_options.text("content_type", content_type, 255)


def _tombstone(message: Message) -> tuple[bytes, str]:
    if message.key is None:
        raise InvalidMessage("payload=None, key=None: a tombstone needs the key that it deletes")
    if message.content_type is not None:
        raise InvalidMessage(f"payload=None, content_type={message.content_type!r:.80}: expected None")
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
