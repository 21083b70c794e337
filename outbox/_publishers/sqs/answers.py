"""The meaning of SQS's answers."""

from collections.abc import Mapping
from typing import Any

from inbox_outbox_base.brokers.sqs.client import (
    NO_QUEUE,
    NOT_SENT,
    ClientError,
    code_of,
    is_servers_fault,
    plain,
    text_of,
)
from inbox_outbox_base.words.outgoing import Outcome, Refused, Unavailable, Unknown

_NEVER = {
    "BatchRequestTooLong",
    "InvalidAttributeValue",
    "InvalidMessageContents",
    "InvalidParameterCombination",
    "InvalidParameterValue",
    "MessageTooLong",
    "MissingParameter",
}
"""No later send of such a message can succeed."""
_SERVERS = {"InternalError", "InternalFailure", "ServiceUnavailable"}


def outcome_of_entry(failed: Mapping[str, Any]) -> Outcome:
    """The outcome of a message that the server has not taken."""
    code, reason = plain(failed.get("Code", "")), f"{failed.get('Code')}: {failed.get('Message', '')}"
    if failed.get("SenderFault") and code in _NEVER:
        return Refused(reason)
    return Unknown(reason) if code in _SERVERS else Unavailable(reason)


def outcome_of_error(error: Exception) -> Outcome:
    """The outcome of a message whose request, which had this message only, has failed."""
    if isinstance(error, NOT_SENT):
        return Unavailable(f"not sent: {text_of(error)}")
    if not isinstance(error, ClientError) or is_servers_fault(error):
        return Unknown(f"no answer: {text_of(error)}")
    return Refused(text_of(error)) if code_of(error) in _NEVER else Unavailable(text_of(error))


def may_be_a_messages_fault(error: Exception) -> bool:
    """Whether the server has refused a whole request because of one of its messages."""
    return isinstance(error, ClientError) and not is_servers_fault(error) and code_of(error) in _NEVER


def outcome_of_lookup(error: Exception, name: str) -> Unavailable:
    """The outcome of messages whose queue was not found."""
    if code_of(error) in NO_QUEUE:
        return Unavailable(f"there is no queue {name!r}")
    return Unavailable(f"not sent: {text_of(error)}")
