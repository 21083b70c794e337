"""Relays compared with a model, for random sequences of outcomes."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine, delete, update

from inbox import Backoff
from outbox import Accepted, Envelope, Outbox, Outcome, Refused, Relay, Unavailable, Unknown
from outbox._relaying.reading import marks as stored
from tests.support.outbox_publishers import TABLES, dead, let_backoffs_end, marks, messages, name_of, waiting
from tests.support.relay.servers import server  # noqa: F401 - where its databases are

MAX_ATTEMPTS = 2
HOUR = Backoff(first=3_600, longest=3_600)
OUTCOMES: dict[str, Outcome] = {
    "accepted": Accepted(),
    "refused": Refused("no"),
    "unavailable": Unavailable("away"),
    "unknown": Unknown("silence"),
}


@dataclass
class Expected:
    """What the model knows about one message."""

    id: str
    key: str | None
    sends: int = 0
    unanswered: int = 0
    waits: bool = False
    """Whether it was sent and not accepted, and no time has passed since."""
    end: Literal["accepted", "refused"] | None = None

    @property
    def is_exhausted(self) -> bool:
        """Whether the message has been given up."""
        return self.unanswered >= MAX_ATTEMPTS

    @property
    def is_dead(self) -> bool:
        return self.end == "refused" or self.is_exhausted

    @property
    def state(self) -> str:
        return "unknown" if self.unanswered else "pending"


@dataclass
class World:
    """An outbox, its relays, and the expected state of every message; also the publisher of all relays."""

    engine: Engine
    holds: bool
    outcomes: list[str]
    """The outcomes of the next sends, in order; later messages are accepted."""
    messages: dict[str, Expected] = field(default_factory=dict)
    """By name, in the order of publishing."""
    errors: list[str] = field(default_factory=list)
    """Errors found during a send; raised outside it, since an exception in `send` is an outcome."""

    def __post_init__(self) -> None:
        options: dict[str, Any] = {"max_attempts": MAX_ATTEMPTS, "backoff": HOUR, "batch": 7}
        options["after_dead"] = "hold" if self.holds else "continue"
        self.relays = [Relay(self.engine, self, **options) for _ in range(3)]

    def publish(self, keys: list[str]) -> None:
        """Publish a message for each key in one transaction."""
        names = [f"{key}{len(self.messages) + number}" for number, key in enumerate(keys)]
        drafts = messages(names)
        with self.engine.begin() as connection:
            ids = Outbox().publish_many(connection, drafts)
        for name, draft, message_id in zip(names, drafts, ids, strict=True):
            self.messages[name] = Expected(message_id, draft.key)

    def send(self, batch: Sequence[Envelope]) -> Iterable[Outcome]:
        """Check that what is sent may be sent, and answer."""
        keys = [message.key for message in batch if message.key is not None]
        self.expect(len(keys) == len(set(keys)), f"two messages of a key at once: {keys}")
        return [self._send(message) for message in batch]

    def _send(self, message: Envelope) -> Outcome:
        name = name_of(message)
        expected = self.messages[name]
        self.expect(message.id == expected.id, f"{name} has another id")
        self.expect(expected.end is None, f"{name} was {expected.end} before")
        self.expect(not expected.waits, f"{name} is sent before its time")
        self.expect(not expected.is_exhausted, f"{name} is sent once too often")
        self.expect(self.is_first(name), f"{name} overtakes")
        expected.sends += 1
        self.expect(message.attempt == expected.sends, f"{name}: send {expected.sends} is {message.attempt}")
        outcome = self.outcomes.pop(0) if self.outcomes else "accepted"
        match outcome:
            case "accepted" | "refused":
                expected.end = outcome
            case "unavailable":
                expected.waits = True
            case "unknown":
                expected.waits, expected.unanswered = True, expected.unanswered + 1
        return OUTCOMES[outcome]

    def is_first(self, name: str) -> bool:
        """Whether no earlier message of the same key may still be sent."""
        key = self.messages[name].key
        for other, each in self.messages.items():
            if other == name:
                return True
            over = each.end == "accepted" or (each.is_dead and not self.holds)
            if each.key == key is not None and not over:
                return False
        raise AssertionError(f"{name} was never published")

    def expect(self, condition: bool, otherwise: str) -> None:
        if not condition:
            self.errors.append(otherwise)

    def relay(self, number: int) -> None:
        """One of the relays sends what it can, and counts it."""
        before = self.count_accepted()
        relayed = self.relays[number].run_once()
        assert self.errors == []
        assert relayed == self.count_accepted() - before
        self.compare()

    def count_accepted(self) -> int:
        return sum(each.end == "accepted" for each in self.messages.values())

    def pass_time(self) -> None:
        """Every backoff ends."""
        let_backoffs_end(self.engine)
        for each in self.messages.values():
            each.waits = False

    def compare(self) -> None:
        """Check that the tables agree with the model."""
        left = {name: each for name, each in self.messages.items() if each.end != "accepted"}
        put_away = dead(self.engine)
        for name, row in put_away.items():
            assert left[name].is_dead
            assert row.attempts == left.pop(name).sends
        marks(self.engine)  # checks that they are below everything
        rows = waiting(self.engine)
        assert list(rows) == list(left)
        for name, row in rows.items():
            expected = left[name]
            assert (row.attempts, row.unanswered) == (expected.sends, expected.unanswered)
            if row.state == "held":
                assert self.holds
                assert expected.is_dead
            else:
                assert expected.end is None
                assert row.state == expected.state

    def drain(self) -> None:
        """Release everything that is held while the broker accepts everything: nothing is left, and every
        message that is not dead has been accepted."""
        self.outcomes.clear()
        for _ in range(100):
            self.pass_time()
            self.relay(0)
            self.release()
            if not waiting(self.engine):
                break
        for name, each in self.messages.items():
            assert each.end == "accepted" or (each.is_dead and name in dead(self.engine))

    def release(self) -> None:
        held = TABLES.message.c.state == "held"
        for name, row in waiting(self.engine).items():
            if row.state == "held":
                self.messages[name].end, self.messages[name].unanswered = None, 0
        with self.engine.begin() as connection:
            connection.execute(update(TABLES.message).where(held).values(state="pending", unanswered=0))


keys = st.sampled_from(["a", "a", "b", "c", "-"])
steps = st.one_of(
    st.tuples(st.just("publish"), st.lists(keys, min_size=1, max_size=6)),
    st.tuples(st.just("relay"), st.integers(0, 2)),
    st.tuples(st.just("relay"), st.integers(0, 2)),
    st.tuples(st.just("pass time")),
)


@pytest.mark.quick("postgresql", "sqlite")
def test_every_message_is_sent_once_and_in_order(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """For any sequence of publishing, outcomes, relays taking turns and time passing: only what may be sent
    is sent, with its id and attempt number; the messages of a key are accepted in order and only once; at the
    end nothing is left, lost or invented."""

    monkeypatch.setattr(stored, "FAR", 1)

    @settings.get_profile("on servers")
    @given(
        plan=st.lists(steps, min_size=3, max_size=14),
        outcomes=st.lists(st.sampled_from([*OUTCOMES]), max_size=40),
        holds=st.booleans(),
    )
    def check(plan: list[tuple[object, ...]], outcomes: list[str], holds: bool) -> None:
        _live(World(engine, holds, outcomes), plan)

    check()


def _live(world: World, plan: list[tuple[object, ...]]) -> None:
    with world.engine.begin() as connection:
        connection.execute(delete(TABLES.message))
        connection.execute(delete(TABLES.dead))
    for step in plan:
        match step:
            case ("publish", list(some)):
                world.publish(some)
            case ("relay", int(number)):
                world.relay(number)
            case ("pass time",):
                world.pass_time()
    world.drain()
