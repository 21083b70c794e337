"""What came out of it."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum


class FaultKind(StrEnum):
    """A fault that the kit knows."""

    KILLED = "killed"
    CUT = "connection cut"
    ANSWER_LOST = "answer lost"
    TWICE = "delivered twice"
    AT_ONCE = "delivered twice at once"
    LATE = "delivered late"
    OUT_OF_ORDER = "delivered out of order"
    ACK_LOST = "acknowledgement lost"
    ACKED_AND_KILLED = "killed once acknowledged"
    LEASE_LOST = "lease lost"
    RESTARTED = "database restarted"


class ViolationKind(StrEnum):
    """What is wrong with an effect, or with a message.

    `DOUBLED`: more often than without a fault. `LOST`: less often. `ADDED`: it does not exist without a
    fault. `STUCK`: however often it is delivered, the handler raises, so it stays with the broker.
    """

    DOUBLED = "doubled"
    LOST = "lost"
    ADDED = "added"
    STUCK = "stuck"


@dataclass(frozen=True, slots=True)
class Violation:
    """An effect that a fault has doubled or lost.

    Attributes:
        kind: what is wrong.
        effect: the row that `effects()` counts, with `{run}` in place of the run's number, or the name of an
            effect outside the database; for a stuck message, what the handler raises.
        fault: which fault.
        where: before or after what it struck; "" if it strikes at no place.
        line: the handler's line there.
        expected: how often the effect takes place without the fault.
        found: how often it took place.
    """

    kind: ViolationKind
    effect: str
    fault: FaultKind
    where: str
    line: str
    expected: int
    found: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultReport:
    """What `exactly_once` has tried and found. `str(report)` is a table.

    Attributes:
        handler: what was tried, as "module:function".
        database: the kind of database.
        seed: what repeats it.
        tried: how many faults of each kind.
        violations: what they have doubled or lost.
        not_tried: which faults were left out, and why.
        seconds: how long it took.
    """

    handler: str
    database: str
    seed: int
    tried: Mapping[FaultKind, int]
    violations: tuple[Violation, ...]
    not_tried: Mapping[str, str]
    seconds: float

    @property
    def is_exactly_once(self) -> bool:
        """Whether no fault that was tried has doubled or lost an effect."""
        return not self.violations

    def check(self) -> None:
        """AssertionError with the table unless `is_exactly_once`."""
        if self.violations:
            raise AssertionError(f"not exactly once\n\n{self}")

    def as_json(self) -> str:
        """The same as JSON, for a program."""
        return json.dumps({**asdict(self), "is_exactly_once": self.is_exactly_once})

    def __str__(self) -> str:
        return "\n".join([*self._head(), "", *_table(self.violations), *self._foot()])

    def _head(self) -> list[str]:
        tried = ", ".join(f"{number} {kind}" for kind, number in self.tried.items())
        number = sum(self.tried.values())
        return [
            f"{self.handler} on {self.database}, seed {self.seed}: {number} faults in {self.seconds:.1f} s",
            f"tried: {tried}",
        ]

    def _foot(self) -> list[str]:
        return [f"not tried: {name} ({reason})" for name, reason in self.not_tried.items()]


def _table(violations: tuple[Violation, ...]) -> list[str]:
    if not violations:
        return ["No effect was doubled or lost."]
    head = ("", "effect", "times", "fault", "line")
    rows = [head, *(_row(each) for each in violations)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    form = "  ".join(f"{{:{width}}}" for width in widths)
    return [form.format(*row).rstrip() for row in rows]


def _row(violation: Violation) -> tuple[str, ...]:
    times = f"{violation.found}, not {violation.expected}" if violation.kind != ViolationKind.STUCK else ""
    fault = f"{violation.fault} {violation.where}".strip()
    return (violation.kind, violation.effect, times, fault, violation.line)
