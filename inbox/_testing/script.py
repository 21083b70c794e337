"""What handlers do in a conformance test, and what they have seen."""

import threading
from collections import Counter
from collections.abc import Callable

from inbox_outbox_base.words.incoming import Delivery


def _nothing(_: Delivery) -> None:
    return None


class HandlerScript:
    """Tells handlers what to do; any thread may look at what happened."""

    def __init__(self, act: Callable[[Delivery], object] = _nothing) -> None:
        self._act = act
        self._lock = threading.Lock()
        self._running = Counter[str | None]()
        self._held = set[bytes]()
        self.deliveries: list[Delivery] = []
        """All deliveries, including those that the inbox already knew."""
        self.runs: list[Delivery] = []
        """The delivery of each run of a body."""
        self.overlaps = set[str]()
        """Keys with two messages that ran at the same time."""

    def hold(self, payload: bytes) -> None:
        """Let the body of messages with this payload go on only after `release`."""
        self._held.add(payload)

    def release(self) -> None:
        """Let everything go on."""
        self._held.clear()

    def holds(self, message: Delivery) -> bool:
        """Whether a body has to wait."""
        return message.payload in self._held

    def delivered(self, message: Delivery) -> None:
        """Note a delivery, before the inbox looks at it."""
        self.deliveries.append(message)

    def begin(self, message: Delivery) -> None:
        """Note that the body runs; raises what the test wants it to raise."""
        with self._lock:
            self.runs.append(message)
            self._running[message.key] += 1
            if message.key is not None and self._running[message.key] > 1:
                self.overlaps.add(message.key)
        try:
            self._act(message)
        except BaseException:
            self.end(message)
            raise

    def end(self, message: Delivery) -> None:
        """Note that the body is over."""
        with self._lock:
            self._running[message.key] -= 1

    @property
    def is_idle(self) -> bool:
        """Whether no body runs."""
        with self._lock:
            return not any(self._running.values())

    def ran(self, payload: bytes) -> int:
        """How often the body ran for messages with this payload."""
        with self._lock:
            return sum(each.payload == payload for each in self.runs)
