"""How an inbox makes its listener: one signature for the four inboxes."""

from collections.abc import Callable, Hashable
from datetime import timedelta
from typing import Any, Generic, TypeVar

from inbox_outbox_base.checks.backoff import Backoff

from .listener_base import ListenerBase, Order
from .outcome import Decision, TooOld

L = TypeVar("L", bound=ListenerBase)


class Listens(Generic[L]):
    """An inbox whose handlers a listener can run."""

    _listener: type[L]

    def listener(
        self,
        *,
        order: Order = "each",
        concurrency: int = 1,
        key: Callable[[Any], Hashable | None] | None = None,
        attempt: Callable[[Any], int] | None = None,
        failures: Callable[[Any], int] | None = None,
        max_attempts: int | None = None,
        backoff: Backoff | None = None,
        grace: float | timedelta = 30,
        too_old: TooOld = "dead_letter",
        dead_letter: Callable[[Any, Decision], Any] | None = None,
    ) -> L:
        """Make a listener, which runs batches of messages and decides what to tell the broker; options as for
        `Listener`. In status-table mode the default backoff is the inbox's own."""
        return self._listener(
            order=order,
            concurrency=concurrency,
            key=key,
            attempt=attempt,
            failures=failures,
            max_attempts=max_attempts,
            backoff=getattr(self, "backoff", None) if backoff is None else backoff,
            grace=grace,
            too_old=too_old,
            dead_letter=dead_letter,
        )
