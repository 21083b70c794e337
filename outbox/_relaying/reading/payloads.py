"""Bounds how much is sent at the same time, and reads large payloads only when they are sent."""

from sqlalchemy import Connection

from inbox_outbox_base.databases.letter import Letter, Unreadable, check_payload
from inbox_outbox_base.databases.relaying import Relaying
from outbox._relaying.sending.batch import Choice
from outbox._relaying.sending.lanes import TopicLanes

_LARGEST_BATCH = 16_000_000
"""The most payload bytes in a batch of several messages; a scan holds at most as many in memory."""
_MOST_BYTES, _MOST_MESSAGES = 64_000_000, 10_000
"""The most payload bytes and messages in all batches that are being sent, if there are several."""


class Loader:
    """The payloads of a relay's batches; a scan reads at most `messages` messages."""

    def __init__(self, database: Relaying, lanes: TopicLanes, messages: int) -> None:
        self._database = database
        self._lanes = lanes
        self.light = _LARGEST_BATCH // messages
        """The largest payload, in bytes, that a scan reads."""

    def load(self, connection: Connection, choice: Choice) -> None:
        """Read the large payloads that the scan skipped, and cut batches or leave them for later, so that the
        limits on what is sent at the same time are kept."""
        flights = self._lanes.flights
        size, number = sum(flight.size for flight in flights), sum(len(flight.letters) for flight in flights)
        kept: list[list[Letter]] = []
        for letters in choice.batches:
            size, number = size + _cut(letters), number + len(letters)
            if (size > _MOST_BYTES or number > _MOST_MESSAGES) and (kept or flights):
                break
            kept.append(letters)
        for letters in kept:
            self._load_heavy(connection, letters, choice)
        choice.batches = [letters for letters in kept if letters]

    def _load_heavy(self, connection: Connection, letters: list[Letter], choice: Choice) -> None:
        heavy = [letter for letter in letters if letter.size > self.light]
        if not heavy:
            return
        found = self._database.payloads(connection, heavy)
        for letter in heavy:
            try:
                check_payload(found[letter.sequence])
            except Unreadable as error:
                letter.damage = str(error)
            else:
                letter.payload = found[letter.sequence]
        damaged = [letter for letter in heavy if letter.damage is not None]
        # The other messages of their keys are not sent either: they may have to wait.
        names = {letter.name for letter in damaged}
        letters[:] = [letter for letter in letters if letter.name not in names]
        choice.exhausted.extend(damaged)


def _cut(letters: list[Letter]) -> int:
    """Shorten a batch of several messages to its limit; return how many bytes of payload it has."""
    total = 0
    for place, letter in enumerate(letters):
        if place and total + letter.size > _LARGEST_BATCH:
            del letters[place:]
            break
        total += letter.size
    return total
