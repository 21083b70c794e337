"""Ends of handlers that the store could not record at the time."""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from inbox_outbox_base.errors.inbox import StoreUnreachable

if TYPE_CHECKING:
    from .records import Change, HeldRecord

_MOST = 10_000
"""The most ends to keep; the attempts of further ones count as never ended."""

_log = logging.getLogger("inbox.claims")


class LateEnds:
    """Ends to write once the store answers again. Each repeats its token, so it changes nothing if somebody
    has taken the message over by then."""

    def __init__(self, write: "Callable[[HeldRecord, Change], bool]") -> None:
        self._write = write
        self._ends: dict[tuple[str, str], tuple[HeldRecord, Change]] = {}

    def __bool__(self) -> bool:
        return bool(self._ends)

    def keep(self, held: "HeldRecord", change: "Change") -> None:
        """Write it later."""
        if len(self._ends) < _MOST:
            self._ends[held.consumer, held.key] = (held, change)

    def write_all(self) -> None:
        """Write all of them; the store has just answered."""
        self.write(*list(self._ends))

    def write(self, *messages: tuple[str, str]) -> None:
        """Write those of these messages, by consumer and key, until the store stops answering."""
        for message in messages:
            if (end := self._ends.pop(message, None)) is None:
                continue
            try:
                self._write(*end)
            except StoreUnreachable:
                # Another thread may have kept a later end of this message meanwhile: that one counts.
                self._ends.setdefault(message, end)
                return
            except Exception:  # noqa: BLE001 - the current claim is another message's
                _log.exception("key %r: cannot record how its handler ended", message[1])
            else:
                _log.info("key %r: recorded late how its handler ended", message[1])
