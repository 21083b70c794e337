"""Several batches of one topic are sent at the same time, but never two with a key in common."""

import asyncio
import random
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain
from threading import Event, Lock
from typing import Any

import pytest
from sqlalchemy import Engine, update
from sqlalchemy.ext.asyncio import create_async_engine

from inbox import Backoff
from inbox_outbox_base.databases.letter import Letter
from inbox_outbox_base.words.outgoing import Failed
from outbox import AsyncRelay, Envelope, Message, Outbox, Outcome, Relay, Unavailable, Unknown
from outbox._relaying.flight import Flight
from outbox._relaying.lanes import Lanes
from tests.support.database import Database
from tests.support.outbox_publishers import (
    ACCEPTED,
    TABLES,
    AsyncRecorder,
    Recorder,
    name_of,
    names_of,
    publish,
    waiting,
)
from tests.support.relay_crashes import running
from tests.support.relay_servers import server  # noqa: F401 - where its databases are
from tests.support.status_workers import wait_until

SLOW = [f"-{number}" for number in range(20)]
"""Messages that are held back."""
BUSY = Failed("busy", 0.05)


@pytest.fixture
def engine(migrated: Database) -> Engine:
    return migrated.engine()


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


@pytest.mark.parametrize("ordered", [False, True])
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


def test_tasks(migrated: Database) -> None:
    """An AsyncRelay, too, sends other keys while a batch hangs."""
    publish(migrated.engine(), "a1")

    relays: list[AsyncRelay] = []
    has_sent = asyncio.Event()

    class AsyncHeld(AsyncRecorder):
        async def send(self, batch: Sequence[Envelope]) -> Any:  # type: ignore[override]
            if "a1" in names_of(batch):
                publish(migrated.engine(), "a2", "b1")
                await asyncio.wait_for(has_sent.wait(), 60)
            answers = await super().send(batch)
            has_sent.set()
            if len(self.accepted) == 3:
                relays[0].stop()
            return answers

    async def scenario() -> None:
        engine = create_async_engine(migrated.async_url)
        relays.append(AsyncRelay(engine, publisher, poll=0.05))
        await relays[0].run()
        await engine.dispose()

    publisher = AsyncHeld()
    asyncio.run(asyncio.wait_for(scenario(), 60))
    assert publisher.names == ["b1", "a1", "a2"]


def test_one_send_at_a_time(engine: Engine) -> None:
    """With a publisher that is not concurrent, each batch begins after the one before it has ended."""
    names = [f"-{number}" for number in range(6)]
    publish(engine, *names)
    publisher = Held(*names)
    publisher.concurrent = False  # type: ignore[attr-defined]
    publisher.may_end.set()
    most: list[int] = []
    publisher.answer = lambda _: most.append(publisher.running) or ACCEPTED  # type: ignore[func-returns-value]
    assert Relay(engine, publisher, batch=2).run_once() == 6
    assert most == [0] * 6


def test_a_topic_has_three_at_most(engine: Engine) -> None:
    """A topic has at most three batches at the same time; other topics are sent beside them."""
    publish(engine, *SLOW)
    another_leaves_beside(engine, 3)


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
    lanes = Lanes(1_000, 32)
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
    assert lane.seconds() <= 0.25


def _flight(number: int) -> Flight:
    now: Any = None
    letter = Letter(
        str(number), 1, "orders", None, "", None, now, b"", 0, number, 0, 0, "pending", None, None, None
    )
    return Flight([letter], ordered=False, give_up_after=None, arrived=lambda: None)


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
        self.may_end.wait(10)
        for place in range(1, len(batch)):
            yield place, ACCEPTED


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
@pytest.mark.parametrize("ordered", [False, True])
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
