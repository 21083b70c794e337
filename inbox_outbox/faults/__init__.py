"""The fault kit: does a handler take each message exactly once, whatever fails?

`exactly_once` runs any handler under the faults that such a guarantee speaks of, and its report says which
effects were doubled or lost, at which line. `effect` and `point` mark what it cannot see on the wire. Nothing
here imports the inbox or the outbox, so that a handler without them can be tried just as well.
"""

from ._exactly_once import exactly_once
from ._handler_process import UnusableHandler
from ._marks import effect, point
from ._report import FaultKind, FaultReport, Violation, ViolationKind

__all__ = [
    "FaultKind",
    "FaultReport",
    "UnusableHandler",
    "Violation",
    "ViolationKind",
    "effect",
    "exactly_once",
    "point",
]
