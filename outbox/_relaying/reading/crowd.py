"""Says who fills a relay's memory: once it is full, all others wait."""

import logging
import time

from .backlog import Backlog

_log = logging.getLogger("outbox.relay")
_EVERY = 60.0
"""Seconds between two counts, and two lines in the log."""
_FEW = 3


class Crowd:
    """Who has most of the messages that one relay remembers, once its memory is half full."""

    def __init__(self) -> None:
        self._next = 0.0
        self._topic: str | None = None

    def look(self, backlog: Backlog) -> str | None:
        """The topic that has most messages in the memory; None unless it is half full."""
        now = time.monotonic()
        if not backlog.is_crowded:
            self._topic = None
        elif self._topic is None or now >= self._next:
            self._next = now + _EVERY
            self._topic = self._say(backlog)
        return self._topic

    def _say(self, backlog: Backlog) -> str:
        topics = backlog.count_topics().most_common(_FEW)
        _log.warning(
            "%d messages cannot be sent yet, %d of them because of another one of their key. Most are of "
            "topics %s. At %d the relay reads no further until some have left: %s. Retry or drop those for "
            "which others wait, or pause a topic",
            len(backlog),
            backlog.count_followers(),
            ", ".join(f"{topic!r} ({number})" for topic, number in topics),
            backlog.most,
            "other topics and keys wait now" if backlog.is_full else "then other topics and keys wait, too",
        )
        return str(topics[0][0])
