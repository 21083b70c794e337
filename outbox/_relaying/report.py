"""The outcomes of batches, to be written to the database."""

from dataclasses import dataclass, field

from sqlalchemy.exc import DBAPIError

from inbox_outbox_base.databases.letter import Letter
from inbox_outbox_base.words.outgoing import Outcome, Unknown


@dataclass(frozen=True, slots=True)
class SentMessage:
    """A message that was sent, and the publisher's outcome."""

    letter: Letter
    outcome: Outcome
    is_last: bool
    """Whether it is given up because it has failed for too long, although it was not refused."""

    @property
    def attempts(self) -> int:
        """How often it has been sent."""
        return self.letter.attempts + 1

    @property
    def is_unknown(self) -> bool:
        """Whether the broker may have taken the message."""
        return isinstance(self.outcome, Unknown)

    @property
    def unanswered(self) -> int:
        """How many of its sends ended without an answer."""
        return self.letter.unanswered + self.is_unknown

    @property
    def retry_after(self) -> float | None:
        """The delay in seconds that the broker asked for, at most a day; None: use the backoff."""
        asked: float | None = getattr(self.outcome, "retry_after", None)
        return asked


@dataclass(frozen=True, slots=True)
class Death:
    """A message that has become a dead letter."""

    letter: Letter
    attempts: int
    error: str


@dataclass(slots=True)
class Report:
    """The outcomes that have arrived and must be written."""

    accepted: list[Letter] = field(default_factory=list)
    others: list[SentMessage] = field(default_factory=list)
    exhausted: list[Letter] = field(default_factory=list)
    """Messages that are given up: they cannot be read, or used up their attempts without an answer."""

    unsent: list[Letter] = field(default_factory=list)
    """Messages that were not sent after all: the batch is over, or an earlier one of their key has failed."""

    dead: list[Death] = field(default_factory=list)
    """The messages that became dead letters; filled in when the report is written."""
    waits: list[tuple[Letter, float]] = field(default_factory=list)
    """The messages that are retried, and the seconds until then; filled in when the report is written."""
    unwritten: "Report | None" = None
    """The outcomes that the database has refused; moved there when the others are written apart from them."""
    refusal: DBAPIError | None = None
    """Why it has refused the last one."""
    seconds: float = 0.0
    """Seconds from the beginning of the batch to the last outcome."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to write."""
        return not (self.accepted or self.others or self.exhausted or self.unsent)

    @property
    def messages(self) -> int:
        """How many messages have an outcome."""
        return len(self.accepted) + len(self.others) + len(self.exhausted)

    def letters(self) -> list[Letter]:
        """The messages that have an outcome."""
        return [*self.accepted, *(answer.letter for answer in self.others), *self.exhausted]

    def add(self, other: "Report") -> None:
        """Take over the outcomes of another batch."""
        self.accepted += other.accepted
        self.others += other.others
        self.exhausted += other.exhausted
        self.unsent += other.unsent
        self.seconds = max(self.seconds, other.seconds)
