"""CloudEvents 1.0: their attributes, as headers (binary mode) or around the payload (structured mode)."""

import json
from base64 import b64encode
from datetime import UTC, datetime
from typing import Any, Literal, get_args

from inbox_outbox_base.checks import outbox_options
from inbox_outbox_base.errors.outbox import InvalidMessage, InvalidOption
from inbox_outbox_base.words.outgoing import IS_EVENT, PREFIX

Mode = Literal["binary", "structured"]
STRUCTURED = "application/cloudevents+json"

_LONGEST = 2_000
_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class CloudEvents:
    """The event attributes of one outbox.

    Raises:
        InvalidOption: an argument cannot be used.
    """

    def __init__(self, source: str, event_type: str | None, mode: Mode) -> None:
        self._source = outbox_options.uri_reference("cloudevents", source, _LONGEST)
        self._type = None if event_type is None else outbox_options.text("event_type", event_type, _LONGEST)
        self._is_structured = outbox_options.one_of("event_mode", mode, get_args(Mode)) == "structured"

    def headers(self, topic: str, key: str | None, event_type: str | None, message_id: str) -> dict[str, str]:
        """The attributes as headers. The type is the topic, unless another is given."""
        attributes = {
            IS_EVENT: "1.0",
            "ce_id": message_id,
            "ce_source": self._source,
            "ce_type": event_type or self._type or topic,
            "ce_time": datetime.now(UTC).isoformat(),
        }
        if key is not None:
            attributes |= {"ce_subject": key, "ce_partitionkey": key}
        return attributes

    def wrapped(
        self, payload: bytes, content_type: str, headers: dict[str, str]
    ) -> tuple[bytes, str, dict[str, str]]:
        """Payload, content type and headers as they are sent. In structured mode the attributes enclose the
        payload; a tombstone stays a tombstone."""
        if not self._is_structured or not content_type:
            return payload, content_type, headers
        event: dict[str, Any] = {
            name.removeprefix(PREFIX): text for name, text in headers.items() if name.startswith(PREFIX)
        }
        others = {name: text for name, text in headers.items() if not name.startswith(PREFIX)}
        start = _json(event | {"datacontenttype": content_type}).removesuffix("}")
        data = f"{start},{_data(payload, content_type)}}}"
        return data.encode(), f"{STRUCTURED}; charset=utf-8", others


def _data(payload: bytes, content_type: str) -> str:
    """The member that holds the payload: JSON as it is, text as text, everything else as Base64."""
    kind = content_type.partition(";")[0].strip().lower()
    try:
        if kind == "application/json" or kind.endswith("+json"):
            text = payload.decode()
            json.loads(text, parse_constant=_no_constant)
            return f'"data":{text}'
        if kind.startswith("text/"):
            return f'"data":{_json(payload.decode())}'
    except ValueError:
        pass  # the payload does not match its content type
    return f'"data_base64":"{b64encode(payload).decode()}"'


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def checked_type(event_type: str | None, events: CloudEvents | None) -> None:
    """Refuse an invalid type of a message, or one that would not be sent.

    Raises:
        InvalidMessage: it is such a type.
    """
    if event_type is not None:
        outbox_options.text("event_type", event_type, _LONGEST)
        if events is None:
            raise InvalidMessage(
                f"event_type={event_type!r:.80}: expected None, as the outbox has no cloudevents="
            )


def cloud_events(source: str | None, event_type: str | None, mode: Mode) -> CloudEvents | None:
    """The settings from an outbox's arguments; None if its messages are not events.

    Raises:
        InvalidOption: an argument cannot be used.
    """
    if source is not None:
        return CloudEvents(source, event_type, mode)
    if event_type is not None:
        raise InvalidOption(f"event_type={event_type!r:.80}: needs cloudevents= as well")
    if mode != "binary":
        raise InvalidOption(f"event_mode={mode!r:.80}: needs cloudevents= as well")
    return None
