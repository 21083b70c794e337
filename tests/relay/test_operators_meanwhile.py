"""Operators retry, drop and pause messages while many topics are being sent: every message that was not
dropped is sent, in the order of its key, and ids chosen by producers cannot be used again."""

import random
import re
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, event, select

from inbox import Backoff
from outbox import (
    Accepted,
    Envelope,
    Message,
    Outbox,
    Outcome,
    Refused,
    Relay,
    Unavailable,
    Unknown,
    drop,
    pause,
    resume,
    retry,
    retry_all,
)
from outbox.errors import MessageNotFound, WrongState
from tests.support.database import Database
from tests.support.outbox_publishers import TABLES, count
from tests.support.processes import wait_until
from tests.support.relay.crashes import engine_of, ownership, running
from tests.support.relay.servers import server  # noqa: F401 - where its databases are

TOPICS = [f"topic-{number}" for number in range(12)]
KEYS = [f"key-{number}" for number in range(20)]
SECONDS, ENOUGH = 1.5, 4
"""For how many seconds the operator acts, and how many messages it drops at least."""
HOLD = re.compile(r"SELECT outbox_relay\.epoch.* FOR |UPDATE outbox_relay SET lease_until", re.DOTALL)
"""How a relay locks its own row; on SQLite, by a write."""
FAILURES = (Unavailable("away", 0.05), Unknown("silence"), Refused("no"))


class Chance:
    """A publisher that keeps the order of each key, answers slowly, and at first answers at random."""

    ordered = True

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._lock = threading.Lock()
        self.is_well = False
        self.accepted: dict[str | None, list[str]] = defaultdict(list)

    def send(self, batch: Sequence[Envelope]) -> Iterator[tuple[int, Outcome]]:
        """Answer for each message, unless an earlier one of its key was not accepted."""
        failed: set[str | None] = set()
        for place, message in enumerate(batch):
            if message.key in failed:
                continue
            with self._lock:
                outcome = self._outcome()
                if outcome == Accepted():
                    self.accepted[message.key].append(message.id)
            failed |= set() if outcome == Accepted() else {message.key}
            time.sleep(self._chance.uniform(0, 0.02))
            yield place, outcome

    def _outcome(self) -> Outcome:
        is_taken = self.is_well or self._chance.random() < 0.8
        return Accepted() if is_taken else self._chance.choice(FAILURES)


def topic_of(key: str) -> str:
    """One topic for each key: across topics, a pause would change the order."""
    return TOPICS[KEYS.index(key) % len(TOPICS)]


class Producer:
    """Publishes to several keys; half of the messages have ids chosen by the producer."""

    def __init__(self, engine: Engine, chance: random.Random) -> None:
        self._engine = engine
        self._chance = chance
        self.published: dict[str, list[str]] = defaultdict(list)

    def publish(self) -> None:
        """Publish in one transaction."""
        keys = [key for key in KEYS if self._chance.random() < 0.4]
        drafts = [
            Message(topic_of(key), b"-", key, id=self._id(key) if index % 2 else None)
            for key in keys
            for index in range(3)
        ]
        with self._engine.begin() as connection:
            ids = Outbox().publish_many(connection, drafts)
        for draft, message_id in zip(drafts, ids, strict=True):
            self.published[str(draft.key)].append(message_id)

    def _id(self, key: str) -> str:
        return f"own-{key}-{len(self.published[key])}"

    @property
    def own_ids(self) -> list[str]:
        """The ids that the producer has chosen."""
        return [each for ids in self.published.values() for each in ids if each.startswith("own")]


class Operator:
    """Acts on messages at random."""

    def __init__(self, engine: Engine, chance: random.Random) -> None:
        self._engine = engine
        self._chance = chance
        self.dropped: set[str] = set()

    def act(self) -> None:
        """Do one random action."""
        topic = self._chance.choice(TOPICS)
        match self._chance.randrange(5):
            case 0:
                pause(self._engine, topic)
            case 1:
                for each in TOPICS:
                    resume(self._engine, each)
            case 2:
                retry_all(self._engine, self._chance.choice(["held", "waiting", "unknown"]))
            case other:
                self._act_on_one(drops=other == 3)

    def _act_on_one(self, *, drops: bool) -> None:
        message = TABLES.message.c
        with self._engine.connect() as connection:
            ids = connection.execute(select(message.id).order_by(message.sequence).limit(50)).scalars().all()
        if ids:
            message_id = self._chance.choice(ids)
            try:
                (drop if drops else retry)(self._engine, message_id)
            except (MessageNotFound, WrongState):
                return
            if drops:
                self.dropped.add(message_id)

    def end(self) -> None:
        """Resume all topics and retry everything."""
        for topic in TOPICS:
            resume(self._engine, topic)
        for state in ("held", "waiting", "unknown"):
            retry_all(self._engine, state)


@pytest.mark.quick("postgresql")
def test_operators_act_meanwhile(migrated: Database) -> None:
    """An operator acts at random while three relays send and the publisher's outcomes are random."""
    engine, seed = engine_of(migrated), random.randrange(10**6)
    print(f"seed {seed}")
    publisher = Chance(seed)
    producer, operator = Producer(engine, random.Random(seed)), Operator(engine, random.Random(seed))
    options = {"backoff": Backoff(first=0.05, longest=0.2), "poll": 0.1, "keep_sent": 3_600}
    relays = [
        Relay(engine_of(migrated), publisher, after_dead="hold", max_attempts=1_000, **options)  # type: ignore[arg-type]
        for _ in range(3)
    ]
    with running(*relays):
        end = time.monotonic() + SECONDS
        while time.monotonic() < end or len(operator.dropped) < ENOUGH:
            producer.publish()
            for _ in range(3):
                operator.act()
        publisher.is_well = True
        operator.end()

        def has_left() -> bool:
            retry_all(engine, "held")
            return count(engine, TABLES.message) == 0

        wait_until(has_left)
    for key, ids in producer.published.items():
        first = list(dict.fromkeys(publisher.accepted[key]))
        assert first == [each for each in ids if each in first], key
        assert set(ids) - set(first) <= operator.dropped
    kept = [each for each in producer.own_ids if each not in operator.dropped]
    assert len(kept) > 10
    with engine.begin() as connection:
        Outbox().publish_many(connection, [Message("topic-1", b"-", id=each) for each in kept])
    assert count(engine, TABLES.message) == 0


def test_a_message_that_is_dropped_while_a_relay_reads(migrated: Database) -> None:
    """An operator drops a message that a relay has read, before the relay locks its own row: it is not
    sent."""
    engine, own = engine_of(migrated), engine_of(migrated)
    publisher = Chance(0)
    publisher.is_well = True
    accepted = publisher.accepted[KEYS[0]]
    dropped: list[str] = []

    def begin(connection: Connection) -> None:
        connection.info["has_read"] = False

    def meanwhile(connection: Connection, _: Any, statement: str, *others: object) -> None:
        if HOLD.search(statement) and connection.info["has_read"]:
            if not dropped:
                dropped.append(published)
                drop(engine, published)
        elif "outbox_message" in statement:
            connection.info["has_read"] = True

    def publish() -> str:
        with engine.begin() as connection:
            return Outbox(wake=False).publish(connection, TOPICS[0], b"-", KEYS[0])

    with running(Relay(own, publisher, poll=0.1)):
        wait_until(lambda: None not in ownership(engine))
        event.listen(own, "begin", begin)
        event.listen(own, "before_cursor_execute", meanwhile)
        while not dropped:  # sometimes the relay locks its lease before it reads
            published = publish()
            wait_until(lambda: dropped or accepted[-1:] == [published])  # noqa: B023 - it ends in this turn
        last = publish()
        wait_until(lambda: accepted[-1:] == [last])
    assert dropped == [published]
    assert published not in accepted
