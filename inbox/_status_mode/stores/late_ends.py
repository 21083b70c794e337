"""Ends of handlers, kept because the store could not record them immediately."""

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from inbox_outbox_base.errors.inbox import StoreUnreachable

if TYPE_CHECKING:
    from .records import Change, HeldRecord

_MOST = 10_000
"""The most ends to keep; attempts with further ends count as never ended."""

_log = logging.getLogger("inbox.claims")


class LateEnds:
    """Ends to write once the store answers again. Each end repeats its token, so it changes nothing if
    somebody has taken the message over by then."""

    def __init__(self, write: "Callable[[HeldRecord, Change], bool]") -> None:
        self._write = write
        self._ends: dict[tuple[str, str], tuple[HeldRecord, Change]] = {}
        self._lock = threading.Lock()

    def __bool__(self) -> bool:
        return bool(self._ends)

    def keep(self, held: "HeldRecord", change: "Change") -> None:
        """Keep an end, to write it later."""
        with self._lock:
            if len(self._ends) < _MOST:
                self._ends[held.consumer, held.key] = (held, change)

    def write_all(self) -> None:
        """Write all ends, now that the store answers, until it stops."""
        try:
            for message in list(self._ends):
                self.write(message)
        except StoreUnreachable:
            return

    def write(self, message: tuple[str, str]) -> None:
        """Write the end of this message (consumer and key), if one is kept.

        Raises:
            StoreUnreachable: the store still does not answer.
        """
        # It is kept until it is written: no other thread may think meanwhile that there is none.
        if (end := self._ends.get(message)) is None:
            return
        try:
            self._write(*end)
        except StoreUnreachable:
            raise
        except Exception:  # noqa: BLE001 - the claim of another message must go on
            _log.exception("key %r: cannot record how its handler ended", message[1])
        else:
            _log.info("key %r: recorded late how its handler ended", message[1])
        with self._lock:
            if self._ends.get(message) is end:  # else another thread has kept a later one
                del self._ends[message]
