"""What is sent next, and in which order."""

from collections.abc import Mapping
from dataclasses import dataclass

from inbox_outbox_base.databases.letter import Letter


@dataclass(frozen=True, slots=True)
class Batch:
    """What comes next."""

    letters: list[Letter]
    """Messages to send, in this order."""
    exhausted: list[Letter]
    """Messages that are not sent any more: they cannot be read, or have had all their attempts, and nobody
    knows what became of them. They become dead letters."""

    def put_aside(self, damaged: list[Letter]) -> None:
        """Send none of these. What their keys have besides is for a later batch: they may have to wait."""
        names = {letter.name for letter in damaged}
        self.letters[:] = [letter for letter in self.letters if letter.name not in names]
        self.exhausted.extend(damaged)


@dataclass(frozen=True, slots=True)
class Demand:
    """What may come next."""

    limit: int
    """Messages, at most."""
    rests: Mapping[str, float]
    """Topics that are not taken at the moment, and for how many seconds they rest; after that, one message
    may be tried."""


def waves(letters: list[Letter]) -> list[list[Letter]]:
    """The batch cut so that no wave has two messages of one key: a later one must not leave before it is
    known what became of the one before it."""
    cut: list[list[Letter]] = []
    places: dict[str, int] = {}
    for letter in letters:
        key, place = letter.envelope.key, 0
        if key is not None:
            place = places.get(key, 0)
            places[key] = place + 1
        if place == len(cut):
            cut.append([])
        cut[place].append(letter)
    return cut
