"""The meaning of Kafka's answer to one message."""

from confluent_kafka import KafkaError, KafkaException

from inbox_outbox_base.words.outgoing import ACCEPTED, Outcome, Refused, Unavailable, Unknown

JUDGED_TOGETHER = frozenset(
    {
        KafkaError.INVALID_RECORD,
        KafkaError._INVALID_DIFFERENT_RECORD,  # noqa: SLF001 - the client's way to name its own codes
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
    }
)
"""All messages of a request get this answer because of one message, or because of their total size."""

_NEVER = JUDGED_TOGETHER | {
    KafkaError._INVALID_ARG,  # noqa: SLF001
    KafkaError.TOPIC_EXCEPTION,
}
_NOT_NOW = frozenset(
    {
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.NOT_ENOUGH_REPLICAS,
        KafkaError.POLICY_VIOLATION,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._QUEUE_FULL,  # noqa: SLF001
        KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
        KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001
    }
)
"""Nothing was written, and an operator can fix it: no such topic, no right to it, too few replicas."""

_GIVEN_UP = frozenset({KafkaError._PURGE_INFLIGHT, KafkaError._PURGE_QUEUE})  # noqa: SLF001


def outcome_of(error: KafkaError | None) -> Outcome:
    """The outcome of a message that was sent in its own request.

    When the client gives up a message, it does not say whether it had sent it. So after every error that is
    not known to be Kafka's refusal, the message may have been written.
    """
    if error is None:
        return ACCEPTED
    if error.code() in _GIVEN_UP:
        return Unknown("no answer in time: there may be no leader, or no connection to it")
    reason = f"{error.name()}: {error.str()}"
    if error.code() in _NEVER:
        return Refused(reason)
    return Unavailable(reason) if error.code() in _NOT_NOW else Unknown(reason)


def outcome_of_unsent(error: KafkaError | Exception) -> Outcome:
    """The outcome of a message that the client has not even queued."""
    if isinstance(error, KafkaException):
        error = error.args[0]
    if not isinstance(error, KafkaError):
        return Unavailable(f"the client's queue is full: {error}")
    outcome = outcome_of(error)
    return Unavailable(outcome.reason) if isinstance(outcome, Unknown) else outcome
