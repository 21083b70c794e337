"""A message as RabbitMQ delivers it, as a handler sees it, and as it is sent on."""

import struct
from collections.abc import Collection, Mapping
from contextlib import suppress
from copy import copy
from datetime import UTC, datetime
from typing import Any, cast

from aiormq.abc import DeliveredMessage
from pamqp import decode, encode
from pamqp.commands import Basic

from inbox._consuming.cloud_events import event_id
from inbox._consuming.text import readable, readable_key
from inbox_outbox_base.words.incoming import Delivery
from inbox_outbox_base.words.redelivered import as_first

ATTEMPT = "inbox-attempt"
"""Header of a message to be redelivered: how many attempts it has had."""
TOPIC = "inbox-topic"
"""Header of a message that is sent on: its original routing key."""
FAILURES = "inbox-failures"
"""Header of a message to be redelivered: how often its handler has failed. A dead letter has no
such header, so that it gets all its attempts again when it is moved back."""
REASON = "inbox-reason"
"""Header of a dead letter."""
_DEDUPLICATION = "x-deduplication-header"
"""By this header, a plugin of RabbitMQ drops what it has seen."""

_KEY, _CREATED_AT = "outbox-key", "outbox-created-at"
_RETURNS = "x-delivery-count"
_OURS = frozenset({ATTEMPT, TOPIC, FAILURES, REASON, _KEY, _CREATED_AT, _DEDUPLICATION})
_BROKERS = ("x-death", "x-first-death-", "x-last-death-", _RETURNS)
_ROUTES = frozenset({"CC", "BCC"})
_EVENT_PREFIXES = ("cloudEvents_", "cloudEvents:")
_PERSISTENT = 2


def frame_of(message: DeliveredMessage) -> Basic.Deliver:
    """Where and how the message was delivered."""
    return cast("Basic.Deliver", message.delivery)


def delivery_of(message: DeliveredMessage, queue: str | None = None) -> Delivery:
    """The handler's view of a message of this queue. It never raises, whatever the message contains."""
    properties = message.header.properties
    headers: Mapping[str, Any] = properties.headers or {}
    users, content_type = _users(headers), readable(properties.content_type or "")
    found = Delivery(
        id=readable(properties.message_id or event_id(users, content_type, message.body) or ""),
        topic=readable(headers.get(TOPIC, frame_of(message).routing_key or "")),
        key=readable_key(headers[_KEY], is_of_outbox=_CREATED_AT in headers) if _KEY in headers else None,
        payload=message.body,
        content_type=content_type,
        headers=users,
        attempt=_attempt(message, headers),
        created_at=_created_at(headers, properties),
        raw=message,
        place=None if queue is None else f"queue {queue}",
    )
    return as_first(found)


def failures_of(delivery: Delivery) -> int:
    """How often its handler had failed before this attempt."""
    counted = (delivery.raw.header.properties.headers or {}).get(FAILURES)
    return max(0, counted) if isinstance(counted, int) else 0


def sent_on(delivery: Delivery, headers: Mapping[str, Any]) -> Basic.Properties:
    """The properties of a message that is put in another queue.

    They leave out what would make RabbitMQ route the message elsewhere, refuse it or take it for a loop. A
    header value that the client can read but not write becomes text.
    """
    return _copied(delivery, {TOPIC: delivery.topic, ATTEMPT: delivery.attempt, **headers})


def redriven(delivery: Delivery) -> Basic.Properties:
    """The properties of a dead letter that goes back to its queue: it begins anew, and no plugin takes it for
    a message that it has seen. One that RabbitMQ itself has made a dead letter keeps its first topic."""
    headers = delivery.raw.header.properties.headers or {}
    topic = {} if TOPIC in headers else _first_topic(headers)
    return _copied(delivery, topic, without=(ATTEMPT, REASON, _DEDUPLICATION))


def _first_topic(headers: Mapping[str, Any]) -> Mapping[str, Any]:
    with suppress(LookupError, TypeError):
        return {TOPIC: headers["x-death"][-1]["routing-keys"][0]}
    return {}


def unchanged(delivery: Delivery) -> Basic.Properties:
    """The properties of a dead letter that is written again where it was."""
    return _copied(delivery, {})


def _copied(
    delivery: Delivery, changes: Mapping[str, Any], without: Collection[str] = ()
) -> Basic.Properties:
    message: DeliveredMessage = delivery.raw
    properties = copy(message.header.properties)
    headers = {name: value for name, value in (properties.headers or {}).items() if _is_kept(name)}
    properties.headers = _writable(
        {name: value for name, value in {**headers, **changes}.items() if name not in without}
    )
    properties.delivery_mode = _PERSISTENT
    properties.expiration = None
    # RabbitMQ refuses a user id that is not the connection's own.
    properties.user_id = None
    return properties


def _users(headers: Mapping[str, Any]) -> dict[str, str]:
    return {
        readable(_name(name)): readable(value)
        for name, value in headers.items()
        if name not in _OURS and not name.startswith(_BROKERS)
    }


def _is_kept(name: str) -> bool:
    return name not in _ROUTES and name != FAILURES and not name.startswith(_BROKERS)


def _writable(value: Any) -> Any:
    """The same value in a form that AMQP carries unchanged; the client has no doubles, for example."""
    match value:
        case dict():
            return {name: _writable(each) for name, each in value.items()}
        case list():
            return [_writable(each) for each in value]
        case bytes():
            return bytearray(value)
    with suppress(TypeError, ValueError, ArithmeticError, struct.error):
        if decode.embedded_value(encode.encode_table_value(value))[1] == value:
            return value
    return str(value).encode(errors="backslashreplace").decode()


def _name(header: str) -> str:
    for prefix in _EVENT_PREFIXES:
        if header.startswith(prefix):
            return f"ce_{header.removeprefix(prefix)}"
    return header


def _attempt(message: DeliveredMessage, headers: Mapping[str, Any]) -> int:
    """This attempt's number: attempts counted here, plus unanswered deliveries. A quorum queue counts the
    unanswered deliveries; a classic queue only says whether there were any."""
    returns = headers.get(_RETURNS)
    if not isinstance(returns, int):
        returns = int(bool(frame_of(message).redelivered))
    counted = headers.get(ATTEMPT)
    return 1 + returns + (counted if isinstance(counted, int) else 0)


def _created_at(headers: Mapping[str, Any], properties: Basic.Properties) -> datetime | None:
    given = properties.timestamp
    with suppress(KeyError, TypeError, ValueError, OverflowError):
        given = _in_utc(datetime.fromisoformat(headers[_CREATED_AT]))
    return None if given is None else _in_utc(given)


def _in_utc(given: datetime) -> datetime:
    return given.astimezone(UTC) if given.tzinfo else given.replace(tzinfo=UTC)
