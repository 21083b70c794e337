"""Redriven: dead letters of a broker that were moved back to where they came from."""

from collections.abc import Callable
from dataclasses import dataclass

from .incoming import Delivery

Only = Callable[[Delivery], bool]
"""Whether a dead letter is to go back, seen as the message that its handler would get."""


@dataclass(frozen=True, slots=True)
class Redriven:
    """What became of the dead letters that were there when a redrive began."""

    moved: int
    """How many went back; of a dry run, how many would."""
    left: int
    """How many were not wanted, or came after the limit."""
    failed: int = 0
    """How many could not go back, of those that were wanted; each is in the log, with the reason."""
