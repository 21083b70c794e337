"""Ends of handlers, kept because the store could not record them immediately."""

import logging
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

    def __bool__(self) -> bool:
        return bool(self._ends)

    def keep(self, held: "HeldRecord", change: "Change") -> None:
        """Keep an end, to write it later."""
        if len(self._ends) < _MOST:
            self._ends[held.consumer, held.key] = (held, change)

    def write_all(self) -> None:
        """Write all ends, now that the store answers."""
        self.write(*list(self._ends))

    def write(self, *messages: tuple[str, str]) -> None:
        """Write the ends of these messages (consumer and key), until the store stops answering."""
        for message in messages:
            if (end := self._ends.pop(message, None)) is None:
                continue
            try:
                self._write(*end)
            except StoreUnreachable:
                # If another thread has kept a later end of this message meanwhile, the later end counts.
                self._ends.setdefault(message, end)
                return
            except Exception:  # noqa: BLE001 - the claim of another message must go on
                _log.exception("key %r: cannot record how its handler ended", message[1])
            else:
                _log.info("key %r: recorded late how its handler ended", message[1])
