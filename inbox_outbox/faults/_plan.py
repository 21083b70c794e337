"""Which faults are tried."""

import random
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ._report import FaultKind
from ._stage import Spot, SpotKind

_ALONE = (
    FaultKind.TWICE,
    FaultKind.LATE,
    FaultKind.OUT_OF_ORDER,
    FaultKind.ACK_LOST,
    FaultKind.ACKED_AND_KILLED,
)
"""What happens to a message as a whole."""


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """One fault, and where it strikes: before or after a spot, or at none."""

    kind: FaultKind
    spot: Spot | None = None
    is_before: bool = True

    @property
    def where(self) -> str:
        """The place, in words."""
        if self.spot is None:
            return ""
        if self.spot.kind is SpotKind.POINT:
            return f"at {self.spot}"
        return f"{'before' if self.is_before else 'after'} {self.spot}"

    @property
    def line(self) -> str:
        """The handler's line there."""
        return self.spot.line if self.spot else ""


def plan(spots: Sequence[Spot], left_out: Collection[FaultKind]) -> list[PlannedFault]:
    """Every fault of the other kinds, at every spot."""
    faults = [each for kind in FaultKind for each in _of(kind, spots)]
    return [fault for fault in faults if fault.kind not in left_out]


def sample(faults: Sequence[PlannedFault], limit: int | None, chance: random.Random) -> list[PlannedFault]:
    """The faults in the order in which they are tried: by chance; with a limit, some of each kind."""
    kinds = defaultdict[FaultKind, list[PlannedFault]](list)
    for fault in chance.sample(faults, len(faults)):
        kinds[fault.kind].append(fault)
    chosen: list[PlannedFault] = []
    while any(kinds.values()) and (limit is None or len(chosen) < limit):
        chosen.extend(each.pop() for each in kinds.values() if each)
    return chance.sample(chosen[:limit], len(chosen[:limit]))


def _of(kind: FaultKind, spots: Sequence[Spot]) -> list[PlannedFault]:
    if kind in _ALONE:
        return [PlannedFault(kind)]
    before = [PlannedFault(kind, spot) for spot in spots]
    after = [PlannedFault(kind, spot, is_before=False) for spot in spots if spot.kind is not SpotKind.POINT]
    if kind is FaultKind.KILLED:
        return [*before, *after]
    if kind is FaultKind.CUT:
        return [fault for fault in before if fault.spot and fault.spot.on_wire]
    if kind is FaultKind.ANSWER_LOST:
        return [fault for fault in after if fault.spot and fault.spot.on_wire]
    if kind is FaultKind.RESTARTED:
        has_commit = any(spot.kind is SpotKind.COMMIT for spot in spots)
        wanted = SpotKind.COMMIT if has_commit else SpotKind.STATEMENT
        return [fault for fault in (*before, *after) if fault.spot and fault.spot.kind is wanted]
    return before
