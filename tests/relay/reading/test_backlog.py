"""The relay's memory of the messages it has read, compared with a plain list of them."""

import time
from datetime import UTC, datetime
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from inbox_outbox_base.databases.letter import Letter
from outbox._relaying.reading import backlog as module
from outbox._relaying.reading.backlog import Backlog
from outbox._relaying.sending.batch import SOLO_AFTER

TOPICS = ["one", "two"]
KEYS = ["a", "b", None]


def letter(
    sequence: int,
    topic: str = "one",
    key: str | None = None,
    bucket: int | None = None,
    unanswered: int = 0,
) -> Letter:
    """A message found by a scan."""
    place = hash(key) % 4 if bucket is None else bucket
    named, now = (str(sequence), place, topic, key, "x"), datetime.now(UTC)
    return Letter(*named, None, now, b"", 0, sequence, 0, unanswered, "pending", None, None, None)


class Machine(RuleBasedStateMachine):
    """Messages are read in any order and sent; they are then accepted, wait, or come back unsent."""

    def __init__(self) -> None:
        super().__init__()
        self.wanted: set[str] = set()
        self.backlog = Backlog(self.wanted.add)
        self.topics: set[str] = set()
        """Topics with messages that could be sent before the last step."""
        self.known: dict[int, Letter] = {}
        self.away: set[int] = set()
        self.waits: set[int] = set()

    def firsts(self, topic: str) -> set[int]:
        """The messages of a topic that may be sent: for each key the lowest one, unless a message of the key
        is being sent or waits."""
        found = set()
        for sequence, each in self.known.items():
            same = [n for n, other in self.known.items() if each.key is not None and other.key == each.key]
            is_first = not same or (sequence == min(same) and not self.away & set(same))
            if each.envelope.topic == topic and is_first and sequence not in self.away | self.waits:
                found.add(sequence)
        return found

    def alone(self, sequence: int) -> bool:
        """Whether the message has to be sent alone."""
        return self.known[sequence].unanswered >= SOLO_AFTER

    @rule(
        sequence=st.integers(1, 60),
        topic=st.sampled_from(TOPICS),
        key=st.sampled_from(KEYS),
        bucket=st.integers(0, 2),
        unanswered=st.sampled_from([0, 0, 3, 4]),
    )
    def read(self, sequence: int, topic: str, key: str | None, bucket: int, unanswered: int) -> None:
        """A scan finds a message, perhaps one that was committed late. A key may have messages in several
        buckets."""
        if sequence in self.known:
            self.backlog.add([self.known[sequence]])
            return
        same = [n for n, other in self.known.items() if key is not None and other.key == key]
        later = [n for n in same if n > sequence and n in self.away]
        if later:
            return  # behind a message that is being sent: the model does not cover this
        self.known[sequence] = letter(sequence, topic, key, bucket, unanswered)
        self.waits -= {n for n in same if n > sequence}  # they wait behind this message now
        self.backlog.add([self.known[sequence]])

    @rule(topic=st.sampled_from(TOPICS), most=st.integers(1, 5))
    def send(self, topic: str, most: int) -> None:
        """Send the next messages of a topic: for each key a run that starts at its first message, and at most
        one of the messages that have to be sent alone."""
        picked = [entry.sequence for entry in self.backlog.pick(topic, most, most)]
        firsts = self.firsts(topic)
        alone = {sequence for sequence in firsts if self.alone(sequence)}
        assert len(set(picked) & firsts - alone) == min(most, len(firsts - alone))
        assert len(set(picked) & alone) == min(1, len(alone))
        assert len(set(picked) - alone) <= most
        for sequence in set(picked) - firsts:
            key = self.known[sequence].key
            before = [n for n, each in self.known.items() if each.key == key and n < sequence]
            assert set(before) <= set(picked)
            assert self.known[sequence].envelope.topic == topic
        self.backlog.send(self.known[n] for n in picked)
        self.away |= set(picked)

    @precondition(lambda self: self.away)
    @rule(data=st.data(), end=st.sampled_from(["left", "waits", "unsent"]))
    def end(self, data: Any, end: str) -> None:
        """For the first message of a key that is being sent: it was accepted, has to wait, or was not sent
        after all."""
        sequence = data.draw(st.sampled_from(sorted(self.away)))
        its_key = self.known[sequence].key
        if its_key is not None:
            sequence = min(n for n in self.away if self.known[n].key == its_key)
        same = {n for n in self.away if its_key is not None and self.known[n].key == its_key and n > sequence}
        self.away -= {sequence}
        if end == "left":
            self.backlog.remove([self.known[sequence]])
            del self.known[sequence]
            return
        if end == "waits":
            self.backlog.wait(self.known[sequence], 60)
            self.waits.add(sequence)
        else:
            self.backlog.keep_unsent(self.known[sequence])
        for each in sorted(same):  # the later ones were not sent either
            self.backlog.keep_unsent(self.known[each])
            self.away -= {each}

    @precondition(lambda self: self.waits)
    @rule(data=st.data())
    def let_go(self, data: Any) -> None:
        """A message's wait ends."""
        sequence = data.draw(st.sampled_from(sorted(self.waits)))
        self.waits.discard(sequence)
        entry = self.backlog.entry(self.known[sequence].bucket, sequence)
        assert entry is not None
        self.backlog.let_go(entry)

    @precondition(lambda self: self.known)
    @rule(data=st.data(), unanswered=st.sampled_from([0, 3, 4]))
    def answers_change(self, data: Any, unanswered: int) -> None:
        """A send gets no answer, or an operator releases a message."""
        sequence = data.draw(st.sampled_from(sorted(self.known)))
        entry = self.backlog.entry(self.known[sequence].bucket, sequence)
        assert entry is not None
        attempts = max(unanswered, data.draw(st.integers(0, 1)))
        self.backlog.note_sends(entry, attempts, unanswered)
        self.known[sequence].attempts, self.known[sequence].unanswered = attempts, unanswered

    @rule(data=st.data())
    def forget(self, data: Any) -> None:
        """Another relay gets a bucket, or everything is read again; what is being sent is not forgotten."""
        lost = data.draw(st.sampled_from([*sorted({each.bucket for each in self.known.values()}), None]))
        if lost is None:
            self.backlog.forget_all()
        else:
            self.backlog.forget(lambda bucket: bucket == lost)
        gone = {n for n, each in self.known.items() if lost in (None, each.bucket)} - self.away
        self.known = {n: each for n, each in self.known.items() if n not in gone}
        self.waits -= gone

    @invariant()
    def what_is_ready(self) -> None:
        """The backlog and the model agree."""
        assert len(self.backlog) == len(self.known)
        assert self.backlog.busy == {self.known[n].bucket for n in self.away}
        lows: dict[int, int] = {}
        for sequence, each in self.known.items():
            lows[each.bucket] = min(sequence, lows.get(each.bucket, sequence))
        assert self.backlog.lowest() == lows
        for topic in TOPICS:
            firsts = self.firsts(topic)
            picked = [entry.sequence for entry in self.backlog.pick(topic, 100, 100)]
            assert {sequence for sequence in firsts if not self.alone(sequence)} <= set(picked)
            assert (topic in self.backlog.topics) == bool(firsts)
        assert self.backlog.ready == sum(len(self.firsts(topic)) for topic in TOPICS)
        assert {*self.backlog.topics} - self.topics <= self.wanted
        self.topics = {*self.backlog.topics}
        self.wanted.clear()


TestBacklog = Machine.TestCase
TestBacklog.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)


@given(sequences=st.lists(st.integers(1, 1_000), unique=True, max_size=40), start=st.integers(0, 1_000))
def test_what_a_scan_leaves_out(sequences: list[int], start: int) -> None:
    """A scan leaves out at least the messages that were read last; each of them is known and lies above the
    start."""
    backlog = Backlog()
    for sequence in sequences:
        backlog.add([letter(sequence, bucket=3)])
    above = backlog.above(3, start)
    assert set(above) <= {sequence for sequence in sequences if sequence > start}
    if sequences == sorted(sequences):
        assert len(above) == sum(sequence > start for sequence in sequences)
    assert backlog.above(4, 0) == []
    assert backlog.lowest() == ({3: min(sequences)} if sequences else {})


@given(order=st.permutations(range(1, 7)), late=st.integers(0, 2))
def test_the_messages_of_a_key_stay_in_order(order: list[int], late: int) -> None:
    """In whatever order a key's messages are read, also if those of a bucket are forgotten, they leave in the
    order of their numbers."""
    backlog = Backlog()
    for sequence in order[late:]:
        backlog.add([letter(sequence, key="a", bucket=sequence % 2)])
    backlog.forget(lambda bucket: bucket == 0)
    for sequence in order[:late]:
        backlog.add([letter(sequence, key="a", bucket=1)])
    left = []
    while backlog.topics:
        (entry,) = backlog.pick("one", 1, 1)
        left.append(entry.sequence)
        assert min(backlog.lowest().values()) == entry.sequence
        backlog.remove([entry])
    assert left == sorted({*order[:late], *(n for n in order[late:] if n % 2)})


def test_waits_end(monkeypatch: Any) -> None:
    """Waits end in their order. A renewed wait ends later, and the wait of a message that has been removed
    never ends."""
    now = 1_000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    backlog = Backlog()
    letters = [letter(sequence) for sequence in (1, 2, 3)]
    backlog.add(letters)
    for each in letters:
        backlog.wait(each, each.sequence)
    assert backlog.seconds() == 1
    backlog.wait(letters[0], 4)
    backlog.remove([letters[1]])
    now += 3.5
    assert [entry.sequence for entry in backlog.ended(2)] == [3]
    now += 1.0
    assert [entry.sequence for entry in backlog.ended(2)] == [1]


def test_a_wait_that_ends_behind_a_message_of_its_key() -> None:
    """If an earlier message of the key was committed late, a message whose wait has ended still waits until
    that one is sent."""
    backlog = Backlog()
    first, second = letter(1, key="a"), letter(2, key="a")
    backlog.add([second, first])
    entry = backlog.entry(second.bucket, 2)
    assert entry is not None
    backlog.wait(second, 0)
    backlog.send([first])
    backlog.let_go(entry)
    assert not backlog.topics
    backlog.wait(first, 60)
    assert not backlog.topics
    backlog.remove([first])
    backlog.send([second])
    backlog.let_go(entry)
    assert not backlog.topics


def test_an_operator_is_noticed() -> None:
    """However long a message has to wait, the relay soon looks at it again, so that it notices an operator's
    action."""
    backlog = Backlog()
    waiting = letter(1)
    backlog.add([waiting])
    backlog.wait(waiting, float("inf"))
    assert backlog.seconds() <= module.LOOK_AGAIN
