"""Bounds how much is sent at the same time, and reads large payloads only when they are sent."""

from sqlalchemy import Connection

from inbox_outbox_base.databases.letter import Letter, Unreadable, check_payload
from inbox_outbox_base.databases.relaying import Relaying
from outbox._relaying.sending.batch import Choice
from outbox._relaying.sending.lanes import TopicLanes, standing_of
from outbox._relaying.sending.turns import Standing

_LARGEST_BATCH = 16_000_000
"""The most payload bytes in a batch of several messages; a scan holds at most as many in memory."""
_MOST_BYTES, _MOST_MESSAGES = 64_000_000, 10_000
"""The most payload bytes and messages in all batches that are being sent, if there are several. Topics whose
sends are not quick have half of each."""


class _Load:
    """Bytes and messages that are being sent."""

    def __init__(self) -> None:
        self.size = self.messages = 0

    def add(self, size: int, messages: int) -> None:
        """Note a batch."""
        self.size += size
        self.messages += messages


class Loader:
    """The payloads of a relay's batches; a scan reads at most `messages` messages."""

    def __init__(self, database: Relaying, lanes: TopicLanes, messages: int) -> None:
        self._database = database
        self._lanes = lanes
        self._most_messages = max(_MOST_MESSAGES, 10 * messages)
        self.light = _LARGEST_BATCH // messages
        """The largest payload, in bytes, that a scan reads."""

    def load(self, connection: Connection, choice: Choice) -> None:
        """Read the large payloads that the scan skipped, and cut batches or leave them for later, so that the
        limits on what is sent at the same time are kept."""
        quick, others = _Load(), _Load()
        for flight in self._lanes.flights:
            load = quick if standing_of(flight) is Standing.QUICK else others
            load.add(flight.size, len(flight.letters))
        kept: list[list[Letter]] = []
        is_quick_full = False
        for letters in choice.batches:
            is_quick = self._lanes.standing(letters[0].topic) is Standing.QUICK
            load = quick if is_quick else others
            size = _MOST_BYTES - quick.size - others.size
            messages = self._most_messages - quick.messages - others.messages
            is_full = size <= 0 or messages <= 0
            if not is_quick:
                size = min(size, _MOST_BYTES // 2 - others.size)
                messages = min(messages, self._most_messages // 2 - others.messages)
            # A message larger than that is the only one of its kind, so that it has its turn.
            fits = not load.messages or (letters[0].size <= size and messages > 0)
            if is_full or not fits or (is_quick and is_quick_full):
                is_quick_full |= is_quick  # until quick batches have ended, so that a large one has its turn
                continue
            # A part of what is left, so that something is left for the next topic, too.
            part = 4 if is_quick else 2
            load.add(_cut(letters, min(_LARGEST_BATCH, size // part), messages // part), len(letters))
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
            payload = found[letter.bucket, letter.sequence]
            try:
                check_payload(payload)
            except Unreadable as error:
                letter.damage = str(error)
            else:
                letter.payload = payload
        damaged = [letter for letter in heavy if letter.damage is not None]
        # The other messages of their keys are not sent either: they may have to wait.
        names = {letter.name for letter in damaged}
        letters[:] = [letter for letter in letters if letter.name not in names]
        choice.exhausted.extend(damaged)


def _cut(letters: list[Letter], size: int, messages: int) -> int:
    """Shorten a batch of several messages to these limits; return how many bytes of payload it has."""
    total = 0
    for place, letter in enumerate(letters):
        if place and (place >= messages or total + letter.size > size):
            del letters[place:]
            break
        total += letter.size
    return total
