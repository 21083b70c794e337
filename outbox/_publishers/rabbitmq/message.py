"""A message in RabbitMQ's terms, and the meaning of its answers."""

import asyncio
from datetime import UTC

from aiormq import exceptions
from aiormq.abc import ArgumentsType
from pamqp.commands import Basic

from inbox_outbox_base.words.outgoing import (
    ACCEPTED,
    IS_EVENT,
    PREFIX,
    Envelope,
    Outcome,
    Refused,
    Unavailable,
    Unknown,
)

_LONGEST_NAME = 128
_PERSISTENT = 2


class Unsent(Exception):
    """The message was certainly not sent, for this reason."""


def properties_of(envelope: Envelope) -> Basic.Properties:
    """All properties; everything but the payload.

    Raises:
        ValueError: AMQP cannot carry the message.
    """
    if envelope.payload is None:
        raise ValueError("payload=None (a tombstone), which RabbitMQ does not have")
    own: dict[str, str] = {
        "outbox-created-at": envelope.created_at.isoformat(),
        "x-deduplication-header": envelope.id,
    }
    if envelope.key is not None:
        own["outbox-key"] = envelope.key
    is_event = IS_EVENT in envelope.headers
    users = {_name(name, is_event=is_event): text for name, text in envelope.headers.items()}
    headers: ArgumentsType = {**users, **own}
    return Basic.Properties(
        message_id=envelope.id,
        content_type=envelope.content_type,
        delivery_mode=_PERSISTENT,
        timestamp=envelope.created_at.astimezone(UTC),
        headers=headers,
    )


def _name(header: str, *, is_event: bool) -> str:
    name = f"cloudEvents_{header.removeprefix(PREFIX)}" if is_event and header.startswith(PREFIX) else header
    if len(name.encode()) > _LONGEST_NAME:
        # The client would truncate it.
        raise ValueError(f"header {name!r}: longer than {_LONGEST_NAME} bytes")
    return name


def outcome_of(error: BaseException | None, exchange: str, envelope: Envelope) -> Outcome:
    """The outcome of a message whose publishing ended like this, if no other message shared its channel."""
    place = f"exchange {exchange!r}, routing key {envelope.topic!r}"
    match error:
        case None:
            return ACCEPTED
        case exceptions.PublishError():
            return Unavailable(f"{place}: no queue is bound there")
        case exceptions.DeliveryError():
            return Unavailable(f"{place}: RabbitMQ rejected it (basic.nack), as it does when a queue is full")
        case Unsent():
            return Unavailable(f"not sent: {error}")
        case exceptions.ChannelPreconditionFailed():
            return Refused(f"{place}: {error}")
        case exceptions.ChannelNotFoundEntity() | exceptions.ChannelAccessRefused():
            return Unavailable(f"{place}: {error}")
        case ValueError() | TypeError():
            return Refused(f"cannot be written as AMQP: {error}")
        case TimeoutError():
            return Unknown("RabbitMQ did not confirm it in time")
        case asyncio.CancelledError():
            return Unknown("the connection ended before RabbitMQ confirmed it")
        case _:
            return Unknown(f"the connection broke before RabbitMQ confirmed it: {error!r}")


def closes_channel(error: BaseException | None) -> bool:
    """Whether RabbitMQ closed the channel on which the message was sent."""
    return isinstance(error, exceptions.AMQPChannelError)


def is_about_one(error: BaseException | None) -> bool:
    """Whether RabbitMQ closed the channel because of one of its messages, perhaps another one. (Otherwise the
    exchange, or the right to publish there, is missing, and RabbitMQ takes none of them.)"""
    cause = error.args[0] if isinstance(error, Unsent) else error
    return closes_channel(cause) and not isinstance(
        cause, exceptions.ChannelNotFoundEntity | exceptions.ChannelAccessRefused
    )
