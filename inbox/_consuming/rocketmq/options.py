"""The consumer's options, checked."""

import re
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from inbox._consuming.leased import options as leased
from inbox_outbox_base.brokers.rocketmq import address
from inbox_outbox_base.errors.inbox import InvalidOption

from .link import GroupSettings, Membership

_NAME = re.compile(r"[%|a-zA-Z0-9_-]+")
_RETRIES = "%RETRY%"
_SHORTEST = 10


def member(url: str, group: str, topic: str | Sequence[str], tag: str) -> Membership:
    """Who receives what."""
    topics = [topic] if isinstance(topic, str) else list(topic)
    if not topics:
        raise InvalidOption(f"topic={topic!r}: expected a name, or a list of names")
    filters = {name("topic", each): _tag(tag) for each in topics}
    for each in topics:
        if each.startswith(_RETRIES):
            # The broker fails to derive another topic from such a name. After that it no longer redelivers
            # hidden messages, of any topic and group.
            raise InvalidOption(
                f"topic={each!r}: retry topics cannot be consumed directly; RocketMQ delivers a group's "
                "retries as messages of the topic itself"
            )
    return Membership(address.parse(url), name("group", group), filters)


def name(option: str, value: Any) -> str:
    """A name of a topic or a group."""
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise InvalidOption(f"{option}={value!r}: expected a name of letters, digits, -, _, % and |")
    return value


def invisible(value: float | timedelta) -> int:
    """Seconds for which a message is hidden."""
    return leased.lease("invisible", value, _SHORTEST)


def dead_letter(value: Any, member: Membership) -> Any:
    """A topic, a function or None."""
    return leased.dead_letter(value, name, member.filters, "topic")


def check_group(group: str, settings: GroupSettings, max_attempts: int | None) -> None:
    """RocketMQ must not bury a message before its attempts are used up."""
    if max_attempts is not None and 0 < settings.deliveries <= max_attempts:
        raise InvalidOption(
            f"max_attempts={max_attempts}: group {group!r} has retryMaxTimes={settings.deliveries - 1}, so "
            f"RocketMQ moves a message to %DLQ%{group} after {settings.deliveries} deliveries, without "
            "the reason; increase retryMaxTimes, or use fewer attempts"
        )


def _tag(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise InvalidOption(f"tag={value!r}: expected a tag, several tags separated by ||, or *")
    return value
