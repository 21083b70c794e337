"""The meaning of RocketMQ's answers."""

from typing import Any

from inbox_outbox_base.brokers.rocketmq import properties
from inbox_outbox_base.brokers.rocketmq.client import described, grpc, protocol, text_of
from inbox_outbox_base.brokers.rocketmq.message import properties_of
from inbox_outbox_base.words.outgoing import ACCEPTED, Envelope, Outcome, Refused, Unavailable, Unknown

_Code = protocol.Code
_NEVER = {
    _Code.ILLEGAL_MESSAGE_GROUP,
    _Code.ILLEGAL_MESSAGE_ID,
    _Code.ILLEGAL_MESSAGE_KEY,
    _Code.ILLEGAL_MESSAGE_PROPERTY_KEY,
    _Code.ILLEGAL_TOPIC,
    _Code.MESSAGE_BODY_EMPTY,
    _Code.MESSAGE_BODY_TOO_LARGE,
    _Code.MESSAGE_PROPERTIES_TOO_LARGE,
    _Code.PAYLOAD_TOO_LARGE,
    _Code.REQUEST_HEADER_FIELDS_TOO_LARGE,
}
_NOT_NOW = {
    _Code.FORBIDDEN,
    _Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,  # also if there is no such topic
    _Code.NOT_FOUND,
    _Code.PAYMENT_REQUIRED,
    _Code.TOO_MANY_REQUESTS,
    _Code.TOPIC_NOT_FOUND,
    _Code.UNAUTHORIZED,
}
"""Nothing was written, and an operator can fix the cause, or it passes."""
_NO_RIGHT = {grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED}


def outcome_of(answer: Any, envelope: Envelope) -> Outcome:
    """The outcome of a message, from RocketMQ's answer to a request that had this message only."""
    code = answer.status.code
    if code == _Code.OK:
        return ACCEPTED
    reason = described(answer.status)
    if code in _NEVER:
        size = properties.size(properties_of(envelope))
        return Refused(f"{reason} (body {len(envelope.payload)} bytes, properties {size} bytes)")
    return Unavailable(reason) if code in _NOT_NOW else Unknown(reason)


def outcome_of_route(answer: Any) -> Outcome:
    """The same for a message that was not sent, from RocketMQ's answer to the question where to send it."""
    reason = described(answer.status)
    return Refused(reason) if answer.status.code in _NEVER else Unavailable(reason)


def outcome_of_error(error: Exception) -> Outcome:
    """The outcome of a message whose request had no answer. It may have arrived: gRPC also says "unavailable"
    if the connection breaks after the request."""
    if isinstance(error, grpc.RpcError) and error.code() in _NO_RIGHT:
        return Unavailable(text_of(error))
    return Unknown(f"no answer: {text_of(error)}")
