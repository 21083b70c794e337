"""Bounds how much is sent at the same time, and reads large payloads only when they are sent."""

from collections.abc import Iterable

from sqlalchemy import Connection

from inbox_outbox_base.databases.letter import Letter, Unreadable, check_payload
from inbox_outbox_base.databases.relaying import Relaying
from outbox._relaying.sending.batch import Choice
from outbox._relaying.sending.flight import Flight
from outbox._relaying.sending.lanes import MOST_FLIGHTS, TopicLanes, hangs, standing_of
from outbox._relaying.sending.turns import Standing

_LARGEST_BATCH = 16_000_000
"""The most payload bytes in a batch of several messages; a scan holds at most as many in memory."""
_MOST_BYTES, _MOST_MESSAGES = 64_000_000, 10_000
"""The payload bytes and messages in all batches that are being sent. Topics whose sends are not quick have
half of each. However little is left, a batch may have its share, one of `MOST_FLIGHTS`, and a large message
has its turn: so whatever hangs leaves room for the others."""


class _Load:
    """What is being sent to topics of some standings."""

    def __init__(self) -> None:
        self.size = self.messages = self.largest = 0

    def add(self, size: int, messages: int) -> None:
        """Note a batch."""
        self.size += size
        self.messages += messages
        self.largest = max(self.largest, size)


class _Loads:
    """What is being sent, and how much may be added to it."""

    def __init__(self, most_messages: int, flights: Iterable[Flight]) -> None:
        self._most_messages = most_messages
        self._share = _MOST_BYTES // MOST_FLIGHTS, most_messages // MOST_FLIGHTS
        self._quick, self._others = _Load(), _Load()
        self._is_kept_free = False
        for flight in flights:
            self.add(standing_of(flight), flight.size, len(flight.letters))

    def add(self, standing: Standing, size: int, messages: int) -> None:
        """Note a batch."""
        (self._others if standing is Standing.OTHER else self._quick).add(size, messages)

    def _left(self, standing: Standing) -> tuple[int, int]:
        """The bytes and messages that are left for topics of this standing."""
        quick, others = self._quick, self._others
        size, messages = self._share
        if not self._is_kept_free or standing is Standing.OTHER:
            size = max(size, _MOST_BYTES - quick.size - others.size)
            messages = max(messages, self._most_messages - quick.messages - others.messages)
        if standing is Standing.OTHER:
            size = min(size, _MOST_BYTES // 2 - others.size)
            messages = min(messages, self._most_messages // 2 - others.messages)
        return size, messages

    def takes(self, standing: Standing, first: Letter) -> bool:
        """Whether a batch that begins with this message may be sent now. A message that is larger than what
        is left has its turn when no other batch of its kind is being sent, or only small quick ones."""
        size, messages = self._left(standing)
        if standing is Standing.OTHER:
            return not self._others.messages or (first.size <= size and messages > 0)
        return first.size <= size or self._quick.largest <= self._share[0]

    def cut(self, standing: Standing, letters: list[Letter]) -> None:
        """Shorten a batch, and note it. It gets a part of what is left, so that something is left for the
        next topic, too."""
        size, messages = self._left(standing)
        if standing is Standing.OTHER:
            size, messages = size // 2, messages // 2
        else:
            size, messages = max(size // 4, self._share[0]), max(messages // 4, self._share[1])
        self.add(standing, _cut(letters, min(_LARGEST_BATCH, size), messages), len(letters))

    def keep_free(self) -> None:
        """Let quick batches have no more than their shares, so that a large message has its turn."""
        self._is_kept_free = True

    @property
    def are_others_full(self) -> bool:
        """Whether topics whose sends are not quick have all that they may have."""
        size, messages = self._left(Standing.OTHER)
        return size <= 0 or messages <= 0


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
        loads = _Loads(self._most_messages, self._lanes.flights)
        kept: list[list[Letter]] = []
        left: list[tuple[Standing, Letter]] = []
        for letters in choice.batches:
            standing = self._lanes.standing(letters[0].topic)
            if loads.takes(standing, letters[0]):
                loads.cut(standing, letters)
                kept.append(letters)
            else:
                left.append((standing, letters[0]))
                if standing is not Standing.OTHER:
                    loads.keep_free()
        self._say_who_hangs(left)
        for letters in kept:
            self._load_heavy(connection, letters, choice)
        choice.batches = [letters for letters in kept if letters]

    def _say_who_hangs(self, left: list[tuple[Standing, Letter]]) -> None:
        """Say it if sends that hang have half of the bytes or messages, or if a batch that is left for later
        could be sent without them."""
        flights = self._lanes.flights
        hanging = [flight for flight in flights if hangs(flight)]
        if not hanging:
            return
        without = _Loads(self._most_messages, (flight for flight in flights if not hangs(flight)))
        if _Loads(self._most_messages, hanging).are_others_full or any(without.takes(*each) for each in left):
            self._lanes.say_who_hangs(hanging)

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
