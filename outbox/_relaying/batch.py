"""The next messages to send, and their order."""

from collections.abc import Mapping
from dataclasses import dataclass

from inbox_outbox_base.databases.letter import Letter


@dataclass(frozen=True, slots=True)
class Batch:
    """The next messages to send, and those to give up."""

    letters: list[Letter]
    """Messages to send, in this order."""
    exhausted: list[Letter]
    """Messages that become dead letters: they cannot be read, or used up their attempts without an answer."""

    def put_aside(self, damaged: list[Letter]) -> None:
        """Send none of these, nor the other messages of their keys: those may have to wait."""
        names = {letter.name for letter in damaged}
        self.letters[:] = [letter for letter in self.letters if letter.name not in names]
        self.exhausted.extend(damaged)


@dataclass(frozen=True, slots=True)
class Demand:
    """Limits on the next batch."""

    limit: int
    """The largest number of messages."""
    rests: Mapping[str, float]
    """Topics that the relay backs off from, and for how many seconds; after that, it tries one message."""


def waves(letters: list[Letter]) -> list[list[Letter]]:
    """Split the batch so that no wave has two messages of one key: a message must not be sent before the
    outcome of its predecessor is known."""
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
