"""A consumer's health, its events, and the hooks that trace its messages."""

from collections.abc import Iterable

from inbox_outbox_base.monitoring.events import Event, EventKind, Hook, Hooks
from inbox_outbox_base.monitoring.life_signs import LifeSigns
from inbox_outbox_base.monitoring.tracing import Tracing

_PATIENCE = 60.0
"""Seconds within which each consumer's loop turns, whatever it waits for; while it stops or gives up
messages, it also waits for `grace`."""


class ConsumerLife(LifeSigns):
    """What a consumer says about itself.

    Args:
        name: what it is, for people.
        topic: its queue or topics.
        on_event: one hook or several.
        grace: seconds that running messages have after a stop.

    Raises:
        InvalidOption: `on_event` is not a function or several.
    """

    def __init__(self, name: str, topic: str, on_event: Hook | Iterable[Hook] | None, grace: float) -> None:
        super().__init__(name, _PATIENCE + grace)
        self._topic = topic
        self._hooks = Hooks(on_event)
        self.tracing = Tracing(self._hooks, "processing")
        self._was_connected = self._is_connected = False

    def begin(self, not_ready: str | None = "it is not connected") -> None:
        """The loop begins, without a connection."""
        super().begin(not_ready)
        self._is_connected = False

    def connected(self) -> None:
        """It gets messages from now on."""
        if not self._is_connected:
            kind = EventKind.RECONNECTED if self._was_connected else EventKind.STARTED
            self._is_connected = self._was_connected = True
            self.ready()
            self._hooks(Event(kind=kind, topic=self._topic))

    def disconnected(self, why: str) -> None:
        """It gets no messages at the moment."""
        self.not_ready(f"it is not connected: {why}")
        if self._is_connected:
            self._is_connected = False
            self._hooks(Event(kind=EventKind.DISCONNECTED, topic=self._topic, error=why))
