"""What the inbox says about a message."""

from enum import StrEnum


class Verdict(StrEnum):
    """What the inbox says about a message; exactly one value says "run it"."""

    NEW = "new"
    """Never taken before, or not to its end: run it."""
    DUPLICATE = "duplicate"
    """Taken before, and committed: acknowledge it."""
    IN_FLIGHT = "in_flight"
    """Somebody else is taking it right now: deliver it again later."""
    MISMATCH = "mismatch"
    """The same key came with another payload: a person has to look."""
    TOO_OLD = "too_old"
    """Older than the retention: nobody can know whether it was taken before."""
    DEAD = "dead"
    """Its attempts are used up."""
    HALTED = "halted"
    """The outcome of one of its steps is unknown, and the step may not be repeated."""
