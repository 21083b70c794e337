"""The consumer's options, checked."""

import re
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from nats.js.api import AckPolicy, ConsumerConfig

from inbox._consuming.leased import options as leased
from inbox_outbox_base.brokers.nats.message import reason_not_a_subject
from inbox_outbox_base.errors.inbox import InvalidOption

FEWEST = 20
"""The fewest messages that a consumer holds by default."""
_SHORTEST = 2
_MOST_PENDING = 10_000
"""How many messages may be unacknowledged, over all members: those that wait for their next attempt count."""
_NAME = re.compile(r"[^\s.*>/\\\x00-\x1f\x7f]{1,255}")


def name(option: str, value: Any) -> str:
    """A name of a stream or a consumer."""
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise InvalidOption(f"{option}={value!r}: expected a name without blanks and any of . * > / \\")
    return value


def subjects(value: str | Sequence[str]) -> list[str]:
    """Subjects, which may have wildcards."""
    found = [value] if isinstance(value, str) else list(value)
    for each in found:
        # With a word in place of each wildcard, it has to be a subject.
        plain = re.sub(r"(?:^|(?<=\.))(?:\*(?=\.|$)|>$)", "x", each) if isinstance(each, str) else ""
        if reason := reason_not_a_subject(plain):
            raise InvalidOption(f"subjects={each!r}: {reason}")
    return found


def ack_wait(value: float | timedelta) -> int:
    """Seconds for which a message is hidden."""
    return leased.lease("ack_wait", value, _SHORTEST)


def dead_letter(value: Any) -> Any:
    """A subject or a function."""
    if value is None:
        raise InvalidOption("dead_letter=None: expected a subject that another stream takes, or a function")
    return leased.dead_letter(value, _subject, (), "subject")


def _subject(option: str, value: str) -> str:
    if reason := reason_not_a_subject(value):
        raise InvalidOption(f"{option}={value!r}: {reason}")
    return value


def new_consumer(durable: str, wait: int, filters: list[str]) -> ConsumerConfig:
    """The settings of a consumer that does not exist yet."""
    return ConsumerConfig(
        durable_name=durable,
        ack_policy=AckPolicy.EXPLICIT,
        ack_wait=wait,
        max_deliver=-1,
        max_ack_pending=_MOST_PENDING,
        filter_subject=filters[0] if len(filters) == 1 else None,
        filter_subjects=filters if len(filters) > 1 else None,
    )


def check_consumer(found: ConsumerConfig, wanted: ConsumerConfig, max_attempts: int | None) -> None:
    """A consumer that existed before must let every message be taken."""
    durable = f"durable={wanted.durable_name!r}: the consumer"
    if found.deliver_subject:
        raise InvalidOption(f"{durable} has deliver_subject={found.deliver_subject!r}: it pushes messages")
    if str(found.ack_policy).lower().rpartition(".")[2] != "explicit":
        raise InvalidOption(f"{durable} has ack_policy={found.ack_policy}: expected explicit")
    if found.headers_only:
        raise InvalidOption(f"{durable} has headers_only=true: messages come without their payloads")
    if found.backoff:
        raise InvalidOption(f"{durable} has backoff={found.backoff}: expected none; see backoff= here")
    if (found.ack_wait or 0) < _SHORTEST:
        raise InvalidOption(f"{durable} has ack_wait={found.ack_wait:g} s: expected {_SHORTEST} or more")
    limit = found.max_deliver or -1
    if limit > 0 and (max_attempts is None or limit <= max_attempts):
        raise InvalidOption(
            f"max_attempts={max_attempts}: the consumer {wanted.durable_name!r} has max_deliver={limit}, so "
            f"NATS forgets a message after {limit} deliveries; set it to -1, or use fewer attempts"
        )
    theirs, ours = _filters(found), _filters(wanted)
    if ours and theirs != ours:
        raise InvalidOption(
            f"subjects={sorted(ours)}: the consumer {wanted.durable_name!r} takes {sorted(theirs) or 'all'}; "
            "use another name for another choice"
        )


def _filters(config: ConsumerConfig) -> set[str]:
    return {*(config.filter_subjects or ()), *([config.filter_subject] if config.filter_subject else ())}
