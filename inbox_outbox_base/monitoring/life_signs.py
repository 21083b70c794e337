"""What a relay or a consumer says about its own health."""

import time
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Probe:
    """The health of a relay or a consumer at one moment."""

    name: str
    is_live: bool
    """Whether its loop turns. If it does not, only a restart helps."""
    is_ready: bool
    """Whether it does its work. A relay is ready while it is in the group of relays, its lease holds and its
    last transaction has committed; a consumer while it is connected to the broker. What is not ready becomes
    so by itself."""
    is_stopping: bool = False
    """Whether it has been told to stop."""
    says: tuple[str, ...] = ()
    """Why it is not live or not ready, and what the broker rejects, for people."""


class HasProbe(Protocol):
    """A relay or a consumer."""

    def probe(self) -> Probe:
        """Say how it is; any thread may ask."""


class LifeSigns:
    """The health of one loop, as it tells it; thread-safe, because each attribute is set at once.

    Args:
        name: what it is, for people.
        patience: after this many seconds without a beat it is not live.
    """

    def __init__(self, name: str, patience: float) -> None:
        self._name = name
        self._patience = patience
        self._last = time.monotonic()
        self._has_ended = False
        self._not_ready: str | None = "it has not begun"

    def begin(self, not_ready: str | None = None) -> None:
        """The loop begins."""
        self.beat()
        self._not_ready, self._has_ended = not_ready, False

    def beat(self) -> None:
        """The loop has turned."""
        self._last = time.monotonic()

    def ready(self) -> None:
        """It can do its work from now on."""
        self._not_ready = None

    def not_ready(self, why: str) -> None:
        """It cannot do its work at the moment."""
        self._not_ready = why

    def end(self) -> None:
        """The loop has ended, for whatever reason."""
        self._has_ended = True

    def probe(self, *, is_stopping: bool, not_ready: str | None = None, says: tuple[str, ...] = ()) -> Probe:
        """All of it; `not_ready` is another reason, and `says` what people should know as well."""
        silent = time.monotonic() - self._last
        troubles = []
        if self._has_ended:
            troubles.append("it has ended")
        elif silent > self._patience:
            troubles.append(f"its loop has not turned for {silent:.0f} s")
        is_live = not troubles
        if not self._has_ended:
            troubles += [each for each in (self._not_ready, not_ready) if each is not None]
        if is_stopping:
            troubles.append("it is stopping")
        return Probe(self._name, is_live, not troubles, is_stopping, (*troubles, *says))
