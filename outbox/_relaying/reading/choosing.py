"""Divides the messages that could be sent next: each is sent, is sent alone, waits or is given up."""

import math
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from itertools import chain
from operator import attrgetter

from sqlalchemy import Connection

from inbox_outbox_base.databases.letter import Letter
from inbox_outbox_base.databases.taking_statements import clock
from outbox._relaying.sending.batch import SOLO_AFTER, Choice
from outbox._relaying.sending.lanes import TopicLane, TopicLanes
from outbox._relaying.settings import RelaySettings

from .backlog import Backlog, BacklogEntry

_NEVER = datetime.min.replace(tzinfo=UTC)


class Sifter:
    """Decides what one relay sends now."""

    def __init__(self, settings: RelaySettings, lanes: TopicLanes) -> None:
        self._most_attempts = settings.max_attempts
        self._lanes = lanes
        # False at first: after a restart, other messages go first. Otherwise relays would send nothing but a
        # message that kills them.
        self._solo_turn = False

    def launch(self, choice: Choice) -> None:
        """Note that these messages are being sent."""
        if choice.batches:
            self._solo_turn = choice.batches[0][0].unanswered < SOLO_AFTER

    def sift(
        self,
        connection: Connection,
        backlog: Backlog,
        picked: Mapping[TopicLane, list[BacklogEntry]],
        letters: Mapping[BacklogEntry, Letter],
    ) -> Choice:
        """Divide what was picked into messages to send, to send alone, and to give up; the rest waits."""
        found = {lane: _found(backlog, entries, letters) for lane, entries in picked.items()}
        now = _now(connection, chain.from_iterable(found.values()))
        choice = Choice()
        suspects, crowded = list[Letter](), list[Letter]()
        for lane, its_letters in found.items():
            batch: list[Letter] = []
            ahead, behind = set[str | None](), set[str | None]()
            for letter in its_letters:
                if letter.key is not None and letter.key in behind:
                    continue  # must not overtake an earlier message of its key, which is not sent now
                if not letter.is_new and (
                    _has_to_wait(backlog, letter, now) or self._is_given_up(letter, choice)
                ):
                    behind.add(letter.key)
                elif letter.unanswered >= SOLO_AFTER:
                    behind.add(letter.key)
                    if letter.key is None or letter.key not in ahead:
                        (crowded if lane.flights else suspects).append(letter)
                else:
                    batch.append(letter)
                    ahead.add(letter.key)
            if batch:
                choice.batches.append(sorted(batch[: lane.room()], key=attrgetter("sequence")))
        if self._is_suspect_away() or not (self._solo_turn or not choice.batches):
            return choice
        if suspects:
            # The suspect with the fewest unanswered sends is first, so that each gets its turn. Nothing else
            # starts together with it, and two suspects are never on their way together: each death has one.
            choice.has_more = bool(choice.batches)  # these batches follow in a moment
            choice.batches = [[min(suspects, key=attrgetter("unanswered"))]]
        else:
            # A suspect begins after the batches of its topic that are being sent have ended.
            topics = {letter.topic for letter in crowded}
            choice.batches = [batch for batch in choice.batches if batch[0].topic not in topics]
        return choice

    def _is_given_up(self, letter: Letter, choice: Choice) -> bool:
        is_exhausted = letter.unanswered > SOLO_AFTER and letter.unanswered >= self._most_attempts
        if letter.damage is not None or is_exhausted:
            choice.exhausted.append(letter)
            return True
        return False

    def _is_suspect_away(self) -> bool:
        return any(flight.is_alone for flight in self._lanes.flights)


def _found(
    backlog: Backlog, entries: list[BacklogEntry], letters: Mapping[BacklogEntry, Letter]
) -> list[Letter]:
    found: list[Letter] = []
    for entry in entries:
        letter = letters.get(entry)
        if letter is not None:
            found.append(letter)
            if letter.attempts != entry.attempts or letter.unanswered != entry.unanswered:
                # An operator has reset its counts.
                backlog.note_sends(entry, letter.attempts, letter.unanswered)
    return found


def _now(connection: Connection, letters: Iterable[Letter]) -> datetime:
    """The database's clock, if one of the messages has a time to compare with it."""
    has_times = any(letter.attempts for letter in letters)
    now: datetime = connection.execute(clock()).scalar_one() if has_times else _NEVER
    return now


def _has_to_wait(backlog: Backlog, letter: Letter, now: datetime) -> bool:
    if letter.failing_since is not None:
        letter.failing_for = (now - letter.failing_since).total_seconds()
    if letter.state == "held":
        backlog.wait(letter, math.inf)
    elif letter.attempts and letter.retry_at is not None and letter.retry_at > now:
        backlog.wait(letter, (letter.retry_at - now).total_seconds())
    else:
        return False
    return True
