"""Renew leases while handlers run: one round for all due claims, one thread for all claims of an inbox."""

import logging
import math
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from inbox_outbox_base.calls import clock

from .lease import MessageLease
from .stores import Store

_log = logging.getLogger("inbox.heartbeats")

ROUNDS = 3
"""The most rounds at the same time: a round that hangs does not delay the next."""

_SHORTEST_CALL, _LONGEST_CALL = 1.0, 10.0
"""Seconds after which an unanswered round is given up."""


@dataclass(slots=True)
class _Entry:
    """One claim.

    Attributes:
        when: when to renew the claim, by `clock.now`.
        is_unanswered: whether the last round of the claim got no answer, or an error.
    """

    when: float
    on_lost: Callable[[], object]
    is_unanswered: bool = False


class Schedule:
    """When to renew each claim, and what the store answers; for threads and tasks.

    A claim is due once a third of its lease has passed. All due claims are one round, in which each claim has
    its own answer. While its lease lasts, a claim is retried soon if its record is locked, or if its round
    gets no answer.
    """

    def __init__(
        self, store: Store, lease: float, keep: float, *, renews: bool, max_runtime: float | None = None
    ) -> None:
        self._store = store
        self._lease = lease
        self._keep = keep
        self._renews = renews
        self.is_needed = renews or max_runtime is not None
        """Whether claims need any attention while they are held."""
        # A claim is due after a third of its lease, so even a late look leaves time for several rounds.
        self.pause = min(lease, max_runtime or lease) / 12
        """Seconds between two looks."""
        # Weak: a handler's frame owns its claim. If a signal's exception keeps it from removing the entry,
        # the renewals end with the frame.
        self._entries: WeakKeyDictionary[MessageLease, _Entry] = WeakKeyDictionary()
        self._lock = threading.Lock()
        self.patience = min(max(lease / 6, _SHORTEST_CALL), _LONGEST_CALL)
        """Seconds that a round may take."""

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, hold: MessageLease, on_lost: Callable[[], object]) -> None:
        """Begin to renew a claim, until `remove` or until nobody has the object any more. If it is lost, the
        thread that notices calls `on_lost`, which must not own it."""
        when = clock.now() + self._lease / 3 if self._renews else math.inf
        with self._lock:
            self._entries[hold] = _Entry(when, on_lost)

    def remove(self, hold: MessageLease) -> None:
        """Stop renewing."""
        with self._lock:
            self._entries.pop(hold, None)

    def drop_lost(self) -> None:
        """Give up the claims whose time is over and that could not be renewed."""
        now = clock.now()
        with self._lock:
            lost = [hold for hold, entry in self._entries.items() if self._is_lost(hold, entry, now)]
        for hold in lost:
            self._lose(hold)

    def _is_lost(self, hold: MessageLease, entry: _Entry, now: float) -> bool:
        # After a pause of the whole process, ask first: the lease may have ended without another claim.
        return hold.is_overdue or (entry.is_unanswered and entry.when <= now and hold.left < 0)

    def due(self) -> list[MessageLease]:
        """The claims to renew now. Claims that get no answer are due again before their leases end."""
        now = clock.now()
        with self._lock:
            found = [hold for hold, entry in self._entries.items() if entry.when <= now]
            for hold in found:
                entry = self._entries[hold]
                # Until the answer comes. A locked record is left out: nobody can take the message over.
                entry.is_unanswered = not hold.is_locked
                entry.when = now + min(max(hold.left, self._lease / 12), self.patience)
        return [hold for hold in found if not hold.is_locked]

    def renew(self, holds: list[MessageLease]) -> None:
        """Renew these claims, and note the store's answer for each."""
        claims = {hold.held: hold for hold in holds}
        sent = clock.now()
        try:
            for held, left in self._store.renew([*claims], self._lease, self._keep, self.patience):
                self._answered(claims.pop(held), sent, left)
        except Exception:  # noqa: BLE001 - more rounds fit in before the leases end
            _log.exception("heartbeats of %d keys failed, one of them %r", len(claims), holds[0].held.key)
            self._retry(list(claims.values()))

    def _answered(self, hold: MessageLease, sent: float, left: float | None) -> None:
        if left is None:
            if hold.is_running:
                self._lose(hold)
            else:  # its handler has just ended, and the record with it: nothing was lost
                self.remove(hold)
            return
        hold.renewed(sent + left)
        # For a locked record, which it does not renew, the store answers what is left of the old lease.
        is_renewed = left > self._lease * 2 / 3
        with self._lock:
            entry = self._entries.get(hold)
            if entry is not None:
                entry.is_unanswered = not is_renewed
                entry.when = sent + self._lease / 3 if is_renewed else clock.now() + self._lease / 12

    def _retry(self, holds: list[MessageLease]) -> None:
        when = clock.now() + self._lease / 12
        with self._lock:
            for hold in holds:
                entry = self._entries.get(hold)
                if entry is not None:
                    entry.when = when

    def _lose(self, hold: MessageLease) -> None:
        with self._lock:
            # Only the thread that removes the entry reports the loss, so the loss is reported once.
            entry = self._entries.pop(hold, None)
        if entry is not None:
            hold.lose()
            entry.on_lost()


class Heartbeats:
    """Renews claims from threads: one thread looks for due claims, and each round has a thread.

    A message handled in less than a third of its lease costs only a place in a dictionary. The thread ends
    when there was no claim for a whole lease.
    """

    def __init__(self, schedule: Schedule) -> None:
        self.pid = os.getpid()
        """The process that owns the claims; after a fork, the child renews none of its parent's claims."""
        self.is_needed = schedule.is_needed
        self._schedule = schedule
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._rounds = 0

    def add(self, hold: MessageLease) -> None:
        """Begin to renew."""
        with self._lock:
            self._schedule.add(hold, _nothing)
            if self._thread is None or not self._thread.is_alive():
                # A daemon: a claim that never ends must not keep the process alive.
                self._thread = threading.Thread(target=self._run, name="inbox heartbeats", daemon=True)
                self._thread.start()

    def remove(self, hold: MessageLease) -> None:
        """Stop renewing."""
        self._schedule.remove(hold)

    def _run(self) -> None:
        idle = 0
        while True:
            time.sleep(self._schedule.pause)
            idle = 0 if len(self._schedule) else idle + 1
            if idle > 12:
                with self._lock:
                    # A claim may have come meanwhile, and `add` starts no second thread.
                    if not len(self._schedule):
                        self._thread = None
                        return
            self._look()

    def _look(self) -> None:
        # Not in `_run`, whose variables would own the claims of the last look.
        self._schedule.drop_lost()
        due = self._schedule.due()
        if due and self._rounds < ROUNDS:
            self._begin(due)

    def _begin(self, due: list[MessageLease]) -> None:
        with self._lock:
            self._rounds += 1
        try:
            # In a thread of its own: a store that hangs must not delay the search for lost claims.
            threading.Thread(target=self._round, args=(due,), name="inbox heartbeat", daemon=True).start()
        except RuntimeError:  # no thread can be started: the claims are due again soon
            self._end()

    def _round(self, due: list[MessageLease]) -> None:
        try:
            self._schedule.renew(due)
        finally:
            self._end()

    def _end(self) -> None:
        with self._lock:
            self._rounds -= 1


def _nothing() -> None:
    """Nothing to do: a synchronous handler checks for itself whether its claim is lost."""
