"""The lease of a claimed message: how long it lasts, and the writes that it permits."""

import math
import os
from collections.abc import Callable
from dataclasses import replace
from threading import Lock
from typing import Any, NoReturn

from inbox_outbox_base.calls import clock
from inbox_outbox_base.errors.blame import OWN
from inbox_outbox_base.errors.inbox import LeaseLost
from inbox_outbox_base.monitoring.events import Event, EventKind, Hooks

from .stores import Change, ClaimAnswer, HeldRecord, Request, Store

Caller = Callable[[Callable[[], Any]], Any]
"""Makes a store call and lets it finish, so that its outcome is known; returns its result."""


class MessageLease:
    """A message that belongs to this process until its lease ends. If `store` is None, the message runs
    without protection, and nothing is written."""

    def __init__(
        self,
        store: Store | None,
        request: Request,
        answer: ClaimAnswer,
        *,
        sent: float,
        hooks: Hooks,
        call: Caller,
        max_runtime: float | None = None,
    ) -> None:
        self._store = store
        self._sent = sent
        self.lease = request.lease
        self._request = request
        self._hooks = hooks
        self.call = call
        self._process = os.getpid()
        self._ended = self._lost = False
        self._is_over = False  # the block; what it has left behind must not go on
        self._untold = Lock()  # taken by the one who tells monitoring that the claim is lost
        self._overdue_at = math.inf if max_runtime is None else sent + max_runtime
        self.is_locked = False
        """Whether a transaction of this claim locks the record against everybody else."""
        # Counted from before the call, so that the lease never ends earlier in the store than here.
        self._until = sent + request.lease
        self.held = HeldRecord(request.consumer, request.key, answer.token)
        self.attempt = 1 if answer.is_first else answer.record.attempts_started

    @property
    def is_protected(self) -> bool:
        """Whether there is a claim."""
        return self._store is not None

    @property
    def is_here(self) -> bool:
        """Whether this is the process that made the claim; False in a fork of it."""
        return self._process == os.getpid()

    @property
    def left(self) -> float:
        """Seconds left of the lease, by the worker's own clock; infinite if the lease cannot end."""
        if self._ended or self.is_locked or self._store is None:
            return math.inf
        return self._until - clock.now()

    @property
    def is_running(self) -> bool:
        """Whether the handler runs and is not known to have lost the claim."""
        return not self._ended and not self._lost

    @property
    def is_overdue(self) -> bool:
        """Whether the handler has run longer than `max_runtime`."""
        return self._store is not None and not self._ended and clock.now() > self._overdue_at

    @property
    def lost(self) -> bool:
        """Whether somebody else may have the claim by now, or this process must give it up."""
        return self._lost or self._is_over or self.left < 0 or self.is_overdue or not self.is_here

    @property
    def loss(self) -> str:
        """Why the claim is lost, if it is."""
        if not self.is_here:
            return f"process {os.getpid()} was forked from {self._process}, which has the claim"
        if self._is_over:
            return "the block is over"
        if self.is_overdue:
            return f"the handler ran longer than max_runtime, {self._overdue_at - self._sent:g} s"
        return "the lease has expired, or the message was taken away"

    def emit(self, kind: EventKind, **fields: Any) -> None:
        """Tell monitoring."""
        if not self._hooks:
            return
        event = Event(
            kind=kind,
            consumer=self.held.consumer,
            key=self.held.key,
            attempt=self.attempt,
            token=self.held.token,
            **{"seconds": clock.now() - self._sent} | fields,
        )
        self._hooks(event)

    def renew(self) -> None:
        """Renew the lease.

        Raises:
            LeaseLost: the claim is lost.
        """
        if self.is_overdue:
            self._refuse()
        # Nobody can take over a locked record, and this write would wait for our own transaction.
        if not self.is_locked:
            self._write(Change(forget_after=self._kept_alive()), "a heartbeat")

    def renewed(self, until: float) -> None:
        """A heartbeat has renewed the lease, or has learned when it ends."""
        # Several rounds may be under way: a late answer must not shorten the lease.
        self._until = max(self._until, until)

    def lose(self) -> None:
        """The claim is lost."""
        if self._untold.acquire(blocking=False):
            # First, because the handler may end as soon as it knows.
            self.emit(EventKind.LOST, error=self.loss)
        self._lost = True

    def check(self) -> None:
        """Raise unless this process certainly has the claim.

        Raises:
            LeaseLost: the claim is lost.
        """
        self.check_process()
        if self._lost or self.is_overdue:
            self._refuse()
        if self.lost:  # by the worker's own clock; the store knows better
            self.renew()

    def check_process(self) -> None:
        """Raise in a fork of the process that has the claim, and after the block: neither writes anything
        about the message.

        Raises:
            LeaseLost: this is a fork, or the block is over.
        """
        if self._is_over or not self.is_here:
            raise LeaseLost(f"key={self.held.key!r}: {self.loss}")

    def _refuse(self) -> NoReturn:
        self.lose()
        raise LeaseLost(f"key={self.held.key!r}: {self.loss}")

    def _write(self, change: Change, what: str) -> None:
        """Write while the handler runs. The write renews the lease, unless the handler has run too long."""
        sent = clock.now()
        # An overdue handler gets no new lease: after the old lease, somebody else can take the message over.
        if self.is_overdue:
            self._fenced(change, what)
            return
        self._fenced(replace(change, lease=self.lease), what)
        self._until = sent + self.lease

    def _fenced(self, change: Change, what: str) -> None:
        self.check_process()
        store = self._store
        with OWN:
            if store is None:
                return
            is_end = change.status is not None
            write = store.end if is_end else store.write
            try:
                if self.call(lambda: write(self.held, change)):
                    return
            except BaseException:
                if is_end:  # it can be written later; any other write needs its answer now
                    store.keep_end(self.held, change)
                raise
        self.emit(EventKind.FENCED_WRITE, error=what)
        self.lose()
        raise LeaseLost(f"key={self.held.key!r}: {what} was refused, because the claim is lost")

    def _kept_alive(self) -> float:
        return self.lease + self._request.retention
