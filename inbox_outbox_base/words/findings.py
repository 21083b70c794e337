"""What a check of a database finds."""

from dataclasses import dataclass
from typing import Literal

Result = Literal["right", "said", "not tried", "refused"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a check has looked at or tried."""

    what: str
    """A table, or a part of the contract."""
    result: Result
    """"right"; "said": no promise is broken, but somebody should know it; "not tried"; "refused": a promise
    cannot be kept."""
    why: str = ""
    """What was found, and what to do; empty if it is right."""

    def __str__(self) -> str:
        why = f"not tried: {self.why}" if self.result == "not tried" else self.why or self.result
        return f"{self.what}: {why}"


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What a check has found."""

    findings: tuple[Finding, ...]

    @property
    def is_safe(self) -> bool:
        """Whether nothing was refused. What was not tried is not refused either."""
        return not any(each.result == "refused" for each in self.findings)

    @property
    def is_complete(self) -> bool:
        """Whether everything was tried."""
        return not any(each.result == "not tried" for each in self.findings)
