"""Publishers that record what a relay sends."""

from collections.abc import Callable, Iterable, Sequence

from inbox.errors import InvalidOption
from inbox_outbox_base.checks.options import shown
from outbox import Accepted, Envelope, Outcome, Refused, Unavailable, Unknown

Answers = Callable[[Envelope], Outcome] | Iterable[Outcome]


class RecordingPublisher:
    """A publisher for `Relay` that sends nowhere, and records every message:
    `Relay(engine, publisher).run_once()`.

    Args:
        answers: what it answers: a function of the message, or one outcome for each send, after which it
            accepts everything.

    Raises:
        InvalidOption: `answers` is neither, or has something that is not an outcome.
    """

    concurrent = False

    def __init__(self, answers: Answers = ()) -> None:
        self.sent: list[Envelope] = []
        """Every message, once for each time it was sent."""
        self.accepted: list[Envelope] = []
        """Those that were answered with `Accepted`."""
        if callable(answers):
            self._answer = answers
            return
        if isinstance(answers, str | bytes) or not isinstance(answers, Iterable):
            raise InvalidOption(f"answers={shown(answers)}: expected a function, or outcomes")
        left = [_checked(each) for each in answers]
        self._answer = lambda _: left.pop(0) if left else Accepted()

    def send(self, batch: Sequence[Envelope]) -> list[Outcome]:
        """Record the messages, and answer."""
        outcomes: list[Outcome] = []
        for message in batch:
            self.sent.append(message)
            outcomes.append(_checked(self._answer(message)))
            if isinstance(outcomes[-1], Accepted):
                self.accepted.append(message)
        return outcomes


class AsyncRecordingPublisher:
    """`RecordingPublisher` for `AsyncRelay`.

    Args:
        answers: as for `RecordingPublisher`.

    Raises as `RecordingPublisher`.
    """

    concurrent = False

    def __init__(self, answers: Answers = ()) -> None:
        self._recording = RecordingPublisher(answers)
        self.sent, self.accepted = self._recording.sent, self._recording.accepted

    async def send(self, batch: Sequence[Envelope]) -> list[Outcome]:
        """Record the messages, and answer."""
        return self._recording.send(batch)


def _checked(outcome: object) -> Outcome:
    if isinstance(outcome, Accepted | Refused | Unavailable | Unknown):
        return outcome
    raise InvalidOption(
        f"answers: {shown(outcome)}: expected Accepted(), Refused(...), Unavailable(...) or Unknown(...)"
    )
