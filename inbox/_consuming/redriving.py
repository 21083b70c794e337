"""Which dead letters of a broker go back."""

from inbox_outbox_base.checks import options
from inbox_outbox_base.errors.inbox import InvalidOption
from inbox_outbox_base.words.incoming import Delivery
from inbox_outbox_base.words.redriven import Only, Redriven


class LetterChoice:
    """Which dead letters go back.

    Args:
        only: see `Only`; None: all.
        limit: at most this many; None: all.
    """

    def __init__(self, only: Only | None, limit: int | None) -> None:
        if only is not None and not callable(only):
            raise InvalidOption(f"only={only!r}: expected a function of a Delivery")
        self._only = only
        self._limit = None if limit is None else options.count("limit", limit)
        self.moved = self.left = self.unreadable = 0

    @property
    def is_full(self) -> bool:
        """Whether as many as wanted have gone back."""
        return self._limit is not None and self.moved >= self._limit

    def wants(self, delivery: Delivery) -> bool:
        """Whether this one goes back."""
        return not self.is_full and (self._only is None or bool(self._only(delivery)))

    def result(self) -> Redriven:
        """The counts."""
        return Redriven(self.moved, self.left, self.unreadable)
