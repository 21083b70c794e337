"""A process's memory of finished messages, which answers their duplicates without a query."""

import json
import os
import threading
from collections.abc import Hashable
from dataclasses import dataclass
from weakref import ReferenceType, ref

from sqlalchemy import Connection, Engine, RootTransaction

from inbox._listening.outcome import Outcome
from inbox_outbox_base.calls import clock
from inbox_outbox_base.checks.keys import is_mismatch
from inbox_outbox_base.transactions.memories import Memories
from inbox_outbox_base.words.incoming import Verdict


class _History:
    """What happens in a database until one of our connections to it breaks, or a new one is opened: that may
    lead to a server that has lost commits."""

    def __init__(self) -> None:
        self.token = object()

    def end(self) -> None:
        """Nothing that was remembered is found any more."""
        self.token = object()


_histories = Memories(_History, _History.end, ("invalidate", "connect"))


@dataclass(frozen=True, slots=True)
class Known:
    """A message that is certainly done.

    Attributes:
        digest: the digest of its payload, if one was given.
        result: JSON, if it has one.
    """

    digest: bytes | None
    result: str | None

    def verdict(self, digest: bytes | None) -> Verdict:
        """The verdict on a message with the same key and this digest."""
        return Verdict.MISMATCH if is_mismatch(digest, self.digest) else Verdict.DUPLICATE

    def outcome(self, digest: bytes | None) -> Outcome:
        """The same as an outcome, with the result for a duplicate."""
        verdict = self.verdict(digest)
        has_result = verdict is Verdict.DUPLICATE and self.result is not None
        return Outcome(verdict, json.loads(self.result or "null") if has_result else None)


LARGEST = 64_000_000
"""The most characters of results that a memory holds."""


class Memory:
    """The most recently used messages, at most `count`, each for a limited time; fewer if their results are
    large. Thread-safe.

    It is empty in the child of a fork, and in a process to which it was sent.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._forget()

    def __reduce__(self) -> tuple[type["Memory"], tuple[int]]:
        return Memory, (self._count,)

    def __len__(self) -> int:
        return len(self._known)

    def recall(self, key: Hashable) -> Known | None:
        """The known message of a key; None if nothing is certain."""
        if self._process != os.getpid():
            self._forget()
        with self._lock:
            found = self._known.get(key)
            if found is None:
                return None
            if found[1] < clock.now():
                self._drop(key)
                return None
            self._known[key] = self._known.pop(key)  # moves it to the end: the most recently used
            return found[0]

    def remember(self, key: Hashable, known: Known, seconds: float) -> None:
        """Remember this for `seconds`; if there is no room, forget the least recently used message."""
        if self._process != os.getpid():
            self._forget()
        with self._lock:
            self._drop(key)
            self._known[key] = known, clock.now() + seconds
            self._size += len(known.result or "")
            while len(self._known) > self._count or self._size > LARGEST:
                self._drop(next(iter(self._known)))

    def see(self, key: Hashable, claim: bytes, transaction: RootTransaction) -> bool:
        """Note that this transaction sees the row of this claim. Return whether the row is certainly
        committed, because another transaction has seen it before.

        The transaction that added the row sees it too, but may be rolled back.
        """
        with self._lock:
            before = self._seen.get(key)
            if before is not None and before[0] == claim:
                return before[1]() is not transaction
            self._seen.pop(key, None)
            # Weak, so that the memory keeps no transaction alive; a transaction that is gone is another one.
            self._seen[key] = claim, ref(transaction)
            if len(self._seen) > self._count:
                del self._seen[next(iter(self._seen))]
            return False

    def _drop(self, key: Hashable) -> None:
        dropped = self._known.pop(key, None)
        if dropped is not None:
            self._size -= len(dropped[0].result or "")

    def _forget(self) -> None:
        self._process = os.getpid()
        # A new one: in a forked child, the old one may be held by a thread that does not exist there.
        self._lock = threading.Lock()
        self._seen: dict[Hashable, tuple[bytes, ReferenceType[RootTransaction]]] = {}
        self._known: dict[Hashable, tuple[Known, float]] = {}
        self._size = 0


def place_of(bind: Engine | Connection, key: str) -> Hashable:
    """A key in the tables to which the options of an engine or a connection lead."""
    translated = bind.get_execution_options().get("schema_translate_map")
    return (history_of(bind.engine), key, frozenset(translated.items()) if translated else None)


def history_of(engine: Engine) -> object:
    """Stands for the database behind an engine, as long as no connection to it breaks or is new."""
    return _histories.of(engine.pool).token
