"""The table at the end of act three."""

from collections.abc import Mapping
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from examples.demo import totals
from examples.demo.totals import Totals

CAPTION = (
    "The request that a killed program was handling is committed or not; others must hear of it if and only "
    "if it is. A killed relay's messages are sent again with the same id, and the consumer's inbox takes "
    "them once."
)


@dataclass(frozen=True, slots=True)
class Announced:
    """The results of one program, in departures unless stated otherwise."""

    committed: Totals
    """The totals in the program's database."""
    counted: Totals
    """The totals of the consumer of its messages."""
    lost: int
    """Committed, and never sent."""
    ghosts: int
    """Sent, and never committed."""
    again: int
    """Sent again, with the same id."""
    killed: int
    """Killed processes of the program."""
    relays_killed: int
    seconds: float

    @property
    def is_exact(self) -> bool:
        """Whether the consumer received exactly what was committed."""
        return not self.lost and not self.ghosts and self.counted == self.committed


def table(found: Mapping[str, Announced]) -> Table:
    """The expected result, and that of each program, side by side."""
    made = Table(title="Do others hear of what is committed, and of nothing else?", caption=CAPTION)
    made.add_column("")
    for heading in ("expected", *found):
        made.add_column(heading, justify="right")
    each = list(found.values())

    def none(label: str, *values: int) -> None:
        cells = (Text(f"{value:,}", style="bold red" if value else "green") for value in values)
        made.add_row(label, "0", *cells)

    def tell(label: str, *values: str) -> None:
        made.add_row(label, "", *values)

    tell("departures committed", *(f"{one.committed.departures:,}" for one in each))
    none("committed, never announced", *(one.lost for one in each))
    none("announced, never committed", *(one.ghosts for one in each))
    none("wrong airlines", *(_wrong(one, "airlines") for one in each))
    none("wrong airports", *(_wrong(one, "airports") for one in each))
    made.add_section()
    tell("programs killed", *(f"{one.killed:,}" for one in each))
    tell("relays killed", *(f"{one.relays_killed or ''}" for one in each))
    tell("sent again, same id", *(f"{one.again:,}" for one in each))
    tell("time", *(f"{one.seconds:.1f} s" for one in each))
    return made


def _wrong(one: Announced, kind: str) -> int:
    return totals.wrong(getattr(one.counted, kind), getattr(one.committed, kind))
