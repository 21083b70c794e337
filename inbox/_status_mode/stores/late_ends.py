"""Ends of handlers, kept because the store could not record them immediately."""

import logging
import math
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from inbox_outbox_base.calls import clock
from inbox_outbox_base.errors.inbox import StoreUnreachable
from inbox_outbox_base.words.incoming import Status

if TYPE_CHECKING:
    from .records import Change, HeldRecord

_MOST = 10_000
"""The most ends to keep; attempts with further ends count as never ended."""

_LONGEST = 1.0
"""Seconds for the ends of other messages."""

_PAUSE = 10.0
"""Seconds before they are tried again after one that got no answer, which can take as long."""

_log = logging.getLogger("inbox.claims")


class LateEnds:
    """Ends to write once the store answers again. Each end repeats its token, so it changes nothing if
    somebody has taken the message over by then."""

    def __init__(self, write: "Callable[[HeldRecord, Change], bool]") -> None:
        self._write = write
        self._ends: dict[tuple[str, str], tuple[HeldRecord, Change]] = {}
        self._again_at = -math.inf
        self._refused: set[tuple[str, str]] = set()
        self._make_locks()

    def _make_locks(self) -> None:
        self._process = os.getpid()
        self._lock, self._writing = threading.Lock(), threading.Lock()

    def __bool__(self) -> bool:
        return bool(self._ends)

    def keep(self, held: "HeldRecord", change: "Change") -> None:
        """Keep an end, to write it later."""
        self._look_for_fork()
        message = (held.consumer, held.key)
        with self._lock:
            known = self._ends.get(message)
            has_room = len(self._ends) < _MOST if known is None else known[0].token <= held.token
            if has_room:
                self._ends[message] = (held, change)

    def write_all(self) -> None:
        """Write the ends, now that the store answers: one thread at a time, for a second at most."""
        self._look_for_fork()
        if clock.now() < self._again_at or not self._writing.acquire(blocking=False):
            return
        until = clock.now() + _LONGEST
        try:
            for message in list(self._ends):
                # What was refused once is tried again with a claim of that message only.
                if message not in self._refused and clock.now() < until:
                    self.write(message)
        except StoreUnreachable:  # perhaps only because the row is locked
            self._again_at = clock.now() + _PAUSE
            with self._lock:
                if message in self._ends:
                    self._ends[message] = self._ends.pop(message)  # the others come first
        except Exception:  # noqa: BLE001 - it is logged, and the others go on with the next call
            return
        finally:
            self._writing.release()

    def _look_for_fork(self) -> None:
        """In a fork, a thread of the parent may seem to have the locks for ever."""
        if self._process != os.getpid():
            self._make_locks()

    def settles(self, message: tuple[str, str]) -> bool:
        """Whether an end of this message is kept after which it must not run again."""
        end = self._ends.get(message)
        return end is not None and end[1].status is not Status.FAILED

    def write(self, message: tuple[str, str]) -> None:
        """Write the end of this message (consumer and key), if one is kept.

        Raises:
            StoreUnreachable: the store still does not answer.
            Exception: the store refuses it, as for a missing right.
        """
        # It is kept until it is written: no other thread may think meanwhile that there is none.
        if (end := self._ends.get(message)) is None:
            return
        try:
            is_written = self._write(*end)
        except StoreUnreachable:
            raise
        except Exception:
            _log.exception("key %r: cannot record how its handler ended", message[1])
            self._refused.add(message)
            raise
        if is_written:
            _log.info("key %r: recorded late how its handler ended", message[1])
        else:
            _log.warning(
                "key %r: how its handler ended was refused, because somebody else has the message, or its "
                "record is gone",
                message[1],
            )
        self._refused.discard(message)
        with self._lock:
            if self._ends.get(message) is end:  # else another thread has kept a later one
                del self._ends[message]
