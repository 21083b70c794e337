"""A loop around a publisher, as a relay has one: what was not accepted is sent again."""

import threading
import time
from collections.abc import Callable, Sequence

from inbox_outbox_base.words.outgoing import ACCEPTED, Envelope, Outcome, Refused, Unavailable, Unknown

Send = Callable[[list[Envelope]], list[Outcome]]


class Resending:
    """Sends one message of each key at a time: after `Unknown` the same again, after `Unavailable` another
    one, so that tests see whether a message that was certainly not sent arrives."""

    def __init__(self, new: Callable[[str], Envelope], keys: Sequence[str]) -> None:
        self._new = new
        self._is_over = threading.Event()
        self._waiting = {key: new(key) for key in keys}
        self._doubtful = set[str]()
        self.accepted: dict[str, list[str]] = {key: [] for key in keys}
        """Ids by key, in the order in which they were accepted."""
        self.never = set[str]()
        """Ids that have certainly not been sent."""

    @property
    def count(self) -> int:
        """How many messages of each key have been accepted."""
        return min(map(len, self.accepted.values()))

    def run(self, send: Send) -> None:
        """Send batches until `stop`."""
        while not self._is_over.is_set():
            batch = [*self._waiting.values()]
            outcomes = send(batch)
            for message, outcome in zip(batch, outcomes, strict=True):
                self._note(message.key or "", message, outcome)
            if ACCEPTED not in outcomes:
                time.sleep(0.05)

    def stop(self) -> None:
        """End `run` after the current batch."""
        self._is_over.set()

    def _note(self, key: str, message: Envelope, outcome: Outcome) -> None:
        assert not isinstance(outcome, Refused), outcome
        if isinstance(outcome, Unknown):
            self._doubtful.add(message.id)
        elif outcome == ACCEPTED:
            self.accepted[key].append(message.id)
            self._waiting[key] = self._new(key)
        elif message.id not in self._doubtful:
            self.never.add(message.id)
            self._waiting[key] = self._new(key)


def certainly_not_sent(batch: Sequence[Envelope], outcomes: Sequence[Outcome]) -> set[str]:
    """The ids of the messages that were unavailable."""
    pairs = zip(batch, outcomes, strict=True)
    return {message.id for message, outcome in pairs if isinstance(outcome, Unavailable)}
