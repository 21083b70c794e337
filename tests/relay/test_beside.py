"""Several batches of one topic are sent at the same time, but never two with a key in common."""

import random
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain, takewhile
from threading import Event, Lock
from typing import Any

import pytest
from sqlalchemy import Engine, update

from inbox import Backoff
from inbox_outbox_base.databases.letter import Letter
from inbox_outbox_base.words.outgoing import Failed
from outbox import Envelope, Message, Outbox, Outcome, Relay, Unavailable, Unknown
from outbox._relaying.sending.flight import Flight
from outbox._relaying.sending.lanes import TopicLanes
from tests.support.on_servers import on, spread
from tests.support.outbox_publishers import (
    ACCEPTED,
    TABLES,
    Recorder,
    name_of,
    names_of,
    publish,
    waiting,
)
from tests.support.processes import wait_until
from tests.support.relay.crashes import running
from tests.support.relay.servers import NAMES

SLOW = [f"-{number}" for number in range(20)]
"""Messages that are held back."""
BUSY = Failed("busy", 0.05)


class Held(Recorder):
    """A publisher whose sends do not return while they contain messages with these names."""

    def __init__(self, *names: str, ordered: bool = False) -> None:
        super().__init__()
        self.ordered = ordered
        self.names_held = {*names}
        self.may_end = Event()
        self.begun: list[list[str]] = []
        self.lock = Lock()
        self.running = 0

    def send(self, batch: Sequence[Envelope]) -> Any:
        with self.lock:
            self.begun.append(names_of(batch))
            self.running += 1
        if not self.names_held.isdisjoint(names_of(batch)):
            assert self.may_end.wait(60)
        with self.lock:
            self.running -= 1
            return super().send(batch)

    def has_begun(self, name: str) -> bool:
        """Whether the send of this message has begun."""
        return any(name in names for names in self.begun)


@spread("ordered", [False, True], where=NAMES)
def test_a_batch_that_hangs_holds_up_its_own_keys_only(engine: Engine, ordered: bool) -> None:
    """While a batch hangs, messages of other keys and without a key are sent; later messages of its own keys
    follow it."""
    publish(engine, "a1", "b1")
    publisher = Held("a1", ordered=ordered)
    with running(Relay(engine, publisher, poll=0.05)):
        try:
            wait_until(lambda: publisher.has_begun("a1"))
            publish(engine, "a2", "b2", "c1", "-1")
            wait_until(lambda: sorted(publisher.names) == ["-1", "c1"])
            publish(engine, "a3", "c2")
            wait_until(lambda: "c2" in publisher.names)
            assert not publisher.has_begun("a2")
            assert not publisher.has_begun("b2")
        finally:
            publisher.may_end.set()
        wait_until(lambda: not waiting(engine))
    assert (publisher.of("a"), publisher.of("b")) == (["a1", "a2", "a3"], ["b1", "b2"])


@on("sqlite")
def test_a_topic_has_three_at_most(engine: Engine) -> None:
    """A topic has at most three batches at the same time; other topics are sent beside them."""
    publish(engine, *SLOW)
    another_leaves_beside(engine, 3)


@on("sqlite")
def test_slow_topics_leave_room(engine: Engine) -> None:
    """While eight batches are being sent, no topic gets a second one, but a new topic still has its turn."""
    for number in range(5):
        publish(engine, *SLOW, topic=f"slow {number}")
    another_leaves_beside(engine, 8)


def another_leaves_beside(engine: Engine, sends: int) -> None:
    """Exactly `sends` hanging batches are sent at the same time, and a message of another topic is sent
    beside them."""
    publisher = Held(*SLOW)
    with running(Relay(engine, publisher, batch=2, poll=0.05)):
        try:
            wait_until(lambda: publisher.running == sends)
            publish(engine, "a1", topic="another")
            wait_until(lambda: publisher.names == ["a1"])
            assert publisher.running == sends
        finally:
            publisher.may_end.set()
        wait_until(lambda: not waiting(engine))


@on("sqlite", "postgresql")
def test_a_suspect_is_alone_in_its_topic(engine: Engine) -> None:
    """A message that may kill relays is sent only after all batches of its topic have ended, and no other
    batch of its topic begins while it is being sent."""
    publish(engine, "a1")
    publisher = Held("a1")
    with running(Relay(engine, publisher, poll=0.05)):
        try:
            wait_until(lambda: publisher.has_begun("a1"))
            silent = {"state": "unknown", "unanswered": 3, "attempts": 3, "error": "silence"}
            with engine.begin() as connection:
                Outbox().publish(connection, "orders", b"s1", key="s", id="s1")
                connection.execute(update(TABLES.message).where(TABLES.message.c.id == "s1").values(silent))
            # A look that finds q1 may have missed s1, if it reads bucket by bucket; the next one has not.
            for quick in ("q1", "q2"):
                publish(engine, quick, topic="quick")
                wait_until(lambda: quick in publisher.names)  # noqa: B023 - it ends in this turn
            publish(engine, "b1")
            publish(engine, "q3", topic="quick")
            wait_until(lambda: "q3" in publisher.names)
            assert not publisher.has_begun("s1")
            first, publisher.may_end = publisher.may_end, Event()
            publisher.names_held = {"s1"}
            first.set()
            wait_until(lambda: publisher.has_begun("s1"))
            publish(engine, "c1")
            publish(engine, "q4", topic="quick")
            wait_until(lambda: "q4" in publisher.names)
            assert publisher.begun == [["a1"], ["q1"], ["q2"], ["q3"], ["s1"], ["q4"]]
        finally:
            publisher.may_end.set()
        wait_until(lambda: not waiting(engine))


def test_batches_that_fail_together_are_one_failure() -> None:
    """Several batches that fail at the same time back off their topic no longer than one would; an accepted
    message in a batch that began before the failure does not end the backoff."""
    lanes = TopicLanes(1_000, 32)
    lane = lanes.of("orders")
    flights = [_flight(number) for number in range(3)]
    for flight in flights:
        lanes.launch(flight)
    assert lane.room() == 0
    answers: list[Outcome] = [Unavailable("away"), Unknown("silence"), ACCEPTED]
    for flight, answer in zip(flights, answers, strict=True):
        flight.fly(lambda _, answer=answer: [answer], lambda: True)  # type: ignore[misc]
        lanes.land(flight)
    assert lane.is_rejected
    assert lanes.seconds({"orders"}) <= 0.25


def _flight(number: int) -> Flight:
    return Flight([_letter(number)], ordered=False, give_up_after=None, arrived=lambda: None)


def _letter(number: int, key: str | None = None) -> Letter:
    now: Any = None
    return Letter(
        str(number), 1, "orders", key, "", None, now, b"", 0, number, 0, 0, "pending", None, None, None
    )


class Halting(Recorder):
    """A publisher that does not accept "a1" the first time, and then answers for others when it may."""

    def __init__(self, *, ordered: bool) -> None:
        super().__init__()
        self.ordered = ordered
        self.may_end = Event()
        self.begun: list[list[str]] = []

    def send(self, batch: Sequence[Envelope]) -> Any:
        names = names_of(batch)
        is_first = "a1" in names and not any("a1" in each for each in self.begun)
        self.begun.append(names)
        if self.ordered and is_first:
            return self._in_turn(batch)
        if "b2" in names:
            self.may_end.wait(10)
        if "a2" in names:  # the first batch ends while this one is being sent
            self.may_end.set()
            time.sleep(0.2)
        return [BUSY if is_first and name == "a1" else ACCEPTED for name in names]

    def _in_turn(self, batch: Sequence[Envelope]) -> Iterator[tuple[int, Outcome]]:
        yield 0, BUSY
        yield 2, ACCEPTED
        self.may_end.wait(10)
        for place in (1, *range(3, len(batch))):
            yield place, ACCEPTED


@on("sqlite")
@pytest.mark.parametrize("ordered", [False, True])
def test_a_failure_while_its_batch_goes_on(engine: Engine, ordered: bool) -> None:
    """A message is not accepted, and its batch goes on with other keys. Those behind it in its key are sent
    after it, and never in two batches at the same time."""
    publish(engine, "a1", "a2", "a3", "b1", "b2")
    publisher = Halting(ordered=ordered)
    with running(Relay(engine, publisher, poll=0.02)):
        wait_until(lambda: bool(publisher.begun))
        if ordered:  # as long as those behind it may be on their way, it is not sent again
            publish(engine, "c1", topic="others")
            wait_until(lambda: ["c1"] in publisher.begun)
            assert sum("a1" in names for names in publisher.begun) == 1
            publisher.may_end.set()
        wait_until(lambda: not waiting(engine))
    sent = [name for names in publisher.begun for name in names]
    assert [name for name in sent if name[0] == "a"][-3:] == ["a1", "a2", "a3"]
    assert sent.count("a2") == sent.count("a3") == (2 if ordered else 1)


ANSWERS: list[Outcome] = [ACCEPTED, ACCEPTED, ACCEPTED, BUSY, Unknown("silence")]


class Watched:
    """A batch with random answers, in random order, and what it reports meanwhile."""

    def __init__(self, seed: int, *, ordered: bool) -> None:
        self.random = random.Random(seed)
        self.ordered = ordered
        self.letters = [_letter(number, self.random.choice([None, *"ab"])) for number in range(8)]
        self.nudges = 0
        self.flight = Flight(self.letters, ordered=ordered, give_up_after=None, arrived=self._nudge)
        self.answers: dict[str, Outcome] = {}
        self.reported: list[tuple[str, str]] = []

    def _nudge(self) -> None:
        self.nudges += 1

    def send(self, batch: Sequence[Envelope]) -> Iterator[tuple[int, Outcome]]:
        for place in self.random.sample(range(len(batch)), len(batch)):
            if self.random.random() < 0.03:
                self.answers |= {each.id: Unknown("") for each in batch if each.id not in self.answers}
                raise self.random.choice([ConnectionError, KeyboardInterrupt])
            answer = self.random.choice(ANSWERS)
            self.answers[batch[place].id] = answer
            yield place, answer
            if self.random.random() < 0.5:
                self.collect()

    def collect(self) -> None:
        """Compare what is reported, and whether the relay has been woken for it, with what is due."""
        before = len(self.reported)
        assert self._is_complete()
        report = self.flight.collect()
        self.reported += [(each.id, "accepted") for each in report.accepted]
        self.reported += [(answer.letter.id, "failed") for answer in report.others]
        self.reported += [(each.id, "unsent") for each in report.unsent]
        assert sorted(self.reported) == sorted(self.due())
        assert self._is_complete()
        assert (self.nudges > 0) == (len(self.reported) > before) or self.flight.is_over
        self.nudges = 0

    def _is_complete(self) -> bool:
        left = [each.id for each in self.flight.unrecorded()]
        return sorted([*left, *dict(self.reported)]) == [each.id for each in self.letters]

    def due(self) -> Iterator[tuple[str, str]]:
        """What is to be reported by now: messages, and as what."""
        groups = defaultdict[str, list[str]](list)
        for letter in self.letters:
            groups[letter.name].append(letter.id)
        for names in groups.values():
            accepted = [*takewhile(lambda name: self.answers.get(name) is ACCEPTED, names)]
            yield from ((name, "accepted") for name in accepted)
            rest = names[len(accepted) :]
            is_over = self.answers.keys() >= {*rest} if self.ordered else rest and rest[0] in self.answers
            if rest and is_over:
                yield rest[0], "failed"
                yield from ((name, "unsent") for name in rest[1:])


@pytest.mark.parametrize("ordered", [False, True])
def test_what_a_batch_reports(ordered: bool) -> None:
    """Each message is reported once. A failed one is reported together with those behind it in its key, when
    none of them is being sent; until then it is unrecorded, and the relay is not woken for it."""
    for seed in random.sample(range(1_000_000), 200):
        print(f"seed {seed}")
        watched = Watched(seed, ordered=ordered)
        watched.flight.fly(watched.send, lambda: True)
        watched.collect()
        left = watched.flight.unanswered()
        assert not (ordered and left)
        assert left == watched.flight.unrecorded()


class Unreliable:
    """A publisher that answers at random and checks what it is given."""

    def __init__(self, seed: int, *, ordered: bool) -> None:
        self.ordered = ordered
        self.random = random.Random(seed)
        self.accepted: dict[str | None, list[int]] = defaultdict(list)
        self.away: dict[str, list[set[str]]] = defaultdict(list)
        """By topic, the keys in each send that has not returned."""
        self.second = {"one": Event(), "two": Event()}
        """Set when a topic has two sends."""
        self.lock = Lock()
        self.errors: list[str] = []

    def send(self, batch: Sequence[Envelope]) -> Any:
        topic, keys = batch[0].topic, [message.key for message in batch if message.key is not None]
        with self.lock:
            if any(not each.isdisjoint(keys) for sends in self.away.values() for each in sends):
                self.errors.append(f"a key of {keys} is being sent already")
            if not self.ordered and len(set(keys)) < len(keys):
                self.errors.append(f"a key is in {keys} twice")
            if self.away[topic]:
                self.second[topic].set()
            self.away[topic].append({*keys})
        if not self.second[topic].wait(60):
            self.errors.append(f"{topic} had one batch at a time")
        time.sleep(self.random.choice([0, 0.001, 0.01]))
        with self.lock:
            self.away[topic].remove({*keys})
            failed = set[str | None]()
            return [self._answer(message, failed) for message in batch]

    def _answer(self, message: Envelope, failed: set[str | None]) -> Outcome:
        if message.key is not None and message.key in failed:
            return ACCEPTED  # the relay counts it as not sent
        outcome = self.random.choice([ACCEPTED] * 8 + [Failed("busy", 0.0)] * 2 + [Unknown("silence")])
        if outcome is ACCEPTED:
            self.accepted[message.key].append(int(name_of(message)))
        else:
            failed.add(message.key)
        return outcome


@pytest.mark.quick("postgresql")
@spread("ordered", [False, True], where=NAMES)
def test_at_random(engine: Engine, ordered: bool) -> None:
    """Whatever is answered, each message is accepted once, in the order of its key, and no key is in two
    sends at the same time."""
    seed = random.randrange(1_000_000)
    draw = random.Random(seed)
    topics, keys = ["one", "two"], [None, *"abcdefghijkl"]
    drafts = [Message(draw.choice(topics), str(number).encode(), draw.choice(keys)) for number in range(120)]
    with engine.begin() as connection:
        Outbox().publish_many(connection, drafts)
    publisher = Unreliable(seed, ordered=ordered)
    often: dict[str, Any] = {"max_attempts": 1_000, "backoff": Backoff(first=0.001, longest=0.002)}
    with running(Relay(engine, publisher, batch=4, poll=0.05, **often)):
        wait_until(lambda: not waiting(engine))
    assert publisher.errors == [], seed
    assert sorted(chain.from_iterable(publisher.accepted.values())) == list(range(120)), seed
    publisher.accepted.pop(None, None)
    assert all(numbers == sorted(numbers) for numbers in publisher.accepted.values()), seed
