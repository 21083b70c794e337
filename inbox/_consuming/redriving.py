"""Which dead letters of a broker go back."""

import asyncio

from inbox_outbox_base.checks import options
from inbox_outbox_base.errors.inbox import InvalidOption
from inbox_outbox_base.words.incoming import Delivery
from inbox_outbox_base.words.redriven import Only, Redriven


def check_places(what: str, dead_letters: object, to: object) -> None:
    """Check the names of two queues or topics; only `to` has a default, which is None.

    Raises:
        InvalidOption: not a name.
    """
    for option, name in (("dead_letters", dead_letters), *([] if to is None else [("to", to)])):
        if not isinstance(name, str) or not name:
            raise InvalidOption(f"{option}={name!r:.80}: expected the name of a {what}")


def check_no_loop() -> None:
    """Refuse to block an event loop.

    Raises:
        RuntimeError: there is one.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError("redrive blocks: call it by asyncio.to_thread")


class LetterChoice:
    """Which dead letters go back, and what became of them.

    Args:
        only: see `Only`; None: all.
        limit: at most this many; None: all.
    """

    def __init__(self, only: Only | None, limit: int | None) -> None:
        if only is not None and not callable(only):
            raise InvalidOption(f"only={only!r}: expected a function of a Delivery")
        self._only = only
        self._limit = None if limit is None else options.count("limit", limit)
        self.moved = self.left = self.failed = 0

    @property
    def is_unconditional(self) -> bool:
        """Whether a letter need not be read to know that it is wanted."""
        return self._only is None

    @property
    def is_full(self) -> bool:
        """Whether as many as wanted have gone back."""
        return self._limit is not None and self.moved >= self._limit

    def most(self, number: int) -> int:
        """How many of so many letters may go back."""
        return number if self._limit is None else min(number, self._limit)

    def room(self, number: int) -> int:
        """The same of those that come after the ones that went back."""
        return number if self._limit is None else min(number, self._limit - self.moved)

    def wants(self, delivery: Delivery) -> bool:
        """Whether this one goes back."""
        return not self.is_full and (self._only is None or bool(self._only(delivery)))

    def result(self) -> Redriven:
        """The counts."""
        return Redriven(self.moved, self.left, self.failed)
