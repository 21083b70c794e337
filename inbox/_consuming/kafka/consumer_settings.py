"""The settings of a Kafka consumer."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from inbox_outbox_base.errors.inbox import InvalidOption

_DEFAULTS = {
    "auto.offset.reset": "earliest",  # also read what was written before the first start
    # Automatic commits would cover messages that were fetched but not handled yet.
    "enable.auto.commit": False,
}
_LONGEST_POLL = 300_000
_CLASSES = {
    "alnum": "A-Za-z0-9",
    "alpha": "A-Za-z",
    "digit": "0-9",
    "graph": "!-~",
    "lower": "a-z",
    "print": " -~",
    "punct": "._\\-",
    "upper": "A-Z",
}
"""POSIX's classes of characters, as far as a topic can have them."""


def settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """The caller's settings, with defaults for the others."""
    if not config.get("group.id"):
        raise InvalidOption("config: expected a group.id")
    automatic = config.get("enable.auto.commit", False)
    if str(automatic).lower() != "false":
        raise InvalidOption(
            f"enable.auto.commit={automatic!r}: expected False, or unfinished messages are committed"
        )
    return {**_DEFAULTS, **config}


def topics(given: str | Sequence[str]) -> list[str]:
    """The names, at least one."""
    names = [given] if isinstance(given, str) else list(given)
    if not names or not all(isinstance(name, str) and name for name in names):
        raise InvalidOption(f"topics={given!r}: expected a topic or a list of topics")
    return names


def check_dead_letter(name: str, topics: Sequence[str], left_out: str) -> None:
    """Refuse a topic of dead letters from which the consumer would take its own. What the patterns of
    `topic.blacklist` leave out, those in `topics` do not find."""
    if any(_matches(pattern, name) for pattern in left_out.split(",") if pattern):
        topics = [topic for topic in topics if not topic.startswith("^")]
    for topic in topics:
        if topic == name or (topic.startswith("^") and _matches(topic, name)):
            raise InvalidOption(
                f"dead_letter={name!r}: the consumer would take its own dead letters (topics={topic!r})"
            )


def _matches(pattern: str, name: str) -> bool:
    """Whether the client's regular expression, in POSIX's syntax, matches."""
    for kind, characters in _CLASSES.items():
        pattern = pattern.replace(f"[:{kind}:]", characters)
    try:
        return re.search(pattern, name) is not None
    except re.error:  # a topic's name has no more than these characters
        return False


def check_grace(grace: float, settings: Mapping[str, Any]) -> None:
    """Limit `grace`: a consumer that gives up a partition waits for the running message without polling."""
    given = settings.get("max.poll.interval.ms", _LONGEST_POLL)
    try:
        longest = float(given) / 1_000
    except (TypeError, ValueError):
        raise InvalidOption(f"max.poll.interval.ms={given!r}: expected a number of milliseconds") from None
    if grace >= longest:
        raise InvalidOption(f"grace={grace:g}: expected less than max.poll.interval.ms ({longest:g} s)")
