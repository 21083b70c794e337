"""What has become of a batch, and what is to be written about it."""

from dataclasses import dataclass, field

from inbox_outbox_base.checks.options import LONGEST_WAIT
from inbox_outbox_base.databases.letter import Letter
from inbox_outbox_base.words.outgoing import Failed, Outcome, Refused, Unknown


@dataclass(frozen=True, slots=True)
class Answer:
    """One message that was sent, and what the publisher said."""

    letter: Letter
    outcome: Outcome
    is_last: bool
    """Whether it is not sent again, although it was not refused: it has failed for too long."""

    @property
    def attempts(self) -> int:
        """How often it has been sent."""
        return self.letter.envelope.attempt

    @property
    def is_unknown(self) -> bool:
        """Whether the message may have been taken."""
        return isinstance(self.outcome, Unknown)

    @property
    def unanswered(self) -> int:
        """How many of its sends ended without an answer."""
        return self.letter.unanswered + self.is_unknown

    @property
    def retry_after(self) -> float | None:
        """Seconds that the broker has asked for, a day at most; None: as the backoff says."""
        asked = getattr(self.outcome, "retry_after", None)
        return max(0.0, min(float(asked), LONGEST_WAIT)) if isinstance(asked, int | float) else None


@dataclass(frozen=True, slots=True)
class Death:
    """A message that has become a dead letter."""

    letter: Letter
    attempts: int
    error: str


@dataclass(slots=True)
class Report:
    """The answers of one batch, in the order in which the messages were sent."""

    accepted: list[Letter] = field(default_factory=list)
    others: list[Answer] = field(default_factory=list)
    exhausted: list[Letter] = field(default_factory=list)
    """Messages that are not sent any more: they cannot be read, or have had all their attempts, and nobody
    knows what became of them."""

    dead: list[Death] = field(default_factory=list)
    """Those of them that were put away, once that has been written."""
    seconds: float = 0.0
    """How long the batch was on its way."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to write."""
        return not (self.accepted or self.others or self.exhausted)

    def reasons(self) -> dict[str, str]:
        """What was last said of the messages of a topic that were not taken."""
        return {each.letter.envelope.topic: getattr(each.outcome, "reason", "") for each in self.others}

    def rejected(self) -> dict[str, float]:
        """Topics of which the broker has taken nothing, and said of no message that it is the message's
        fault; with the shortest time that it has asked for, in seconds."""
        taken = {letter.envelope.topic for letter in self.accepted}
        asked: dict[str, float] = {}
        for answer in self.others:
            topic, seconds = answer.letter.envelope.topic, answer.retry_after or 0.0
            if isinstance(answer.outcome, Refused | Failed) or answer.is_last:
                taken.add(topic)
            asked[topic] = min(seconds, asked.get(topic, seconds))
        return {topic: seconds for topic, seconds in asked.items() if topic not in taken}
