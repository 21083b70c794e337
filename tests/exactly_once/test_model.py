"""The inbox against a model, with generated interleavings."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, Engine, select, update

from inbox import Inbox, Verdict
from inbox.schema import tables
from tests.support import accounts
from tests.support.database import Database

KEYS = ["a", "A", "a ", "b"]
RETENTION = timedelta(days=7)
MESSAGE = tables().message

keys = st.sampled_from(KEYS)


class Failed(Exception):
    """The error of a handler's body."""


@dataclass
class World:
    """One consumer, the effects in its database, and the effects that the model expects.

    In the model, every message of a key was made on the day when the key is first seen.
    """

    engine: Engine
    inbox: Inbox
    ran: dict[str, int] = field(default_factory=dict)
    made: dict[str, datetime] = field(default_factory=dict)
    now: datetime = field(default_factory=lambda: datetime.now(UTC))
    shift: timedelta = timedelta()

    def deliver(self, key: str, *, fails: bool) -> None:
        """Deliver a message; the body raises at its end if `fails`."""
        made = self.made.setdefault(key, self.now)
        expected = self.expected(key)
        verdicts = []
        try:
            with self.inbox.transaction(self.engine, key, message_time=made - self.shift) as work:
                verdicts.append(work.verdict)
                if work.is_new:
                    accounts.add(work.connection, self.account(key))
                    if fails:
                        raise Failed  # noqa: TRY301 - inside the block, as a body would
        except Failed:
            pass
        else:
            if expected is Verdict.NEW:
                self.ran[key] = self.ran.get(key, 0) + 1
        assert verdicts == [expected]

    def expected(self, key: str) -> Verdict:
        """The verdict that the inbox must give for another message of this key."""
        young = self.now - self.made[key] < RETENTION
        if young:
            return Verdict.DUPLICATE if key in self.ran else Verdict.NEW
        return Verdict.DUPLICATE if key in self.stored() else Verdict.TOO_OLD

    def pass_days(self, days: int) -> None:
        """Let time pass by making every row older."""
        self.now += timedelta(days=days)
        self.shift += timedelta(days=days)
        old = select(MESSAGE.c.key, MESSAGE.c.accepted_at).where(MESSAGE.c.consumer == self.inbox.consumer)
        with self.engine.begin() as connection:
            for key, accepted in connection.execute(old).all():
                row = (MESSAGE.c.consumer == self.inbox.consumer) & (MESSAGE.c.key == key)
                older = accepted - timedelta(days=days)
                connection.execute(update(MESSAGE).where(row).values(accepted_at=older))

    def purge(self) -> None:
        """Delete rows that are older than the retention, and only those."""
        young = {key for key in self.ran if self.now - self.made[key] < RETENTION}
        self.inbox.purge(self.engine, batch=2, sleep=lambda _: None)
        assert young <= self.stored()

    def stored(self) -> set[str]:
        """The keys that have rows."""
        with self.engine.connect() as connection:
            rows = select(MESSAGE.c.key).where(MESSAGE.c.consumer == self.inbox.consumer)
            return set(connection.scalars(rows))

    def account(self, key: str) -> str:
        """The account that counts the runs of this key."""
        return f"{self.inbox.consumer}/{KEYS.index(key)}"

    def check(self) -> None:
        """Every key took effect once if it ran, and else not at all."""
        totals = accounts.totals(self.engine)
        assert {key: totals[self.account(key)] for key in KEYS} == {key: self.ran.get(key, 0) for key in KEYS}
        assert set(self.ran.values()) <= {1}


@pytest.fixture
def engine(migrated: Database) -> Engine:
    """A database with a table of accounts; each example opens its own account."""
    return accounts.make(migrated.engine())


def new_world(engine: Engine) -> World:
    """A consumer without any messages so far."""
    world = World(engine, Inbox(uuid4().hex, wait=0, retention=RETENTION, on_refusal="return"))
    with engine.begin() as connection:
        for key in KEYS:
            accounts.open_account(connection, world.account(key))
    return world


deliveries = st.tuples(st.just("deliver"), keys, st.booleans())
steps = st.one_of(
    deliveries,
    deliveries,
    st.tuples(st.just("pass days"), st.integers(1, 5)),
    st.tuples(st.just("purge")),
)


def test_each_key_runs_once_whatever_happens_around_it(engine: Engine) -> None:
    """For any sequence of deliveries, failures, duplicates, passing days and purges: every key takes effect
    once, a failure leaves nothing behind, and every verdict is the one that the model expects."""

    @settings.get_profile("on servers")
    @given(plan=st.lists(steps, max_size=25))
    def check(plan: list[tuple[object, ...]]) -> None:
        _live(engine, plan)

    check()


def _live(engine: Engine, plan: list[tuple[object, ...]]) -> None:
    world = new_world(engine)
    for step in plan:
        match step:
            case ("deliver", str(key), bool(fails)):
                world.deliver(key, fails=fails)
            case ("pass days", int(days)):
                world.pass_days(days)
            case ("purge",):
                world.purge()
    world.check()


@dataclass
class Workers:
    """Transactions that are open at the same time, and a model of what each sees of the others."""

    engine: Engine
    inbox: Inbox
    connections: list[Connection]
    taken: list[set[str]]
    committed: set[str] = field(default_factory=set)
    writer: int | None = None
    """SQLite: who has the only write lock, which even a duplicate takes."""

    def accept(self, worker: int, batch: list[str], *, one_by_one: bool) -> None:
        """A worker takes messages and, for the new ones, does their work."""
        expected = []
        for key in batch:
            expected.append(self.expected(worker, key))
            if expected[-1] is Verdict.NEW:
                self.taken[worker].add(key)
        if self.engine.dialect.name == "sqlite" and self.writer is None:
            self.writer = worker
        connection = self.connections[worker]
        verdicts = (
            [self.inbox.accept(connection, key) for key in batch]
            if one_by_one
            else self.inbox.accept_many(connection, batch)
        )
        assert verdicts == expected
        for key, verdict in zip(batch, verdicts, strict=True):
            if verdict is Verdict.NEW:
                accounts.add(connection, f"{self.inbox.consumer}/{KEYS.index(key)}")

    def expected(self, worker: int, key: str) -> Verdict:
        """A key that is committed, or taken by this worker, is a duplicate; a key taken by another worker is
        in flight."""
        if key in self.committed | self.taken[worker]:
            return Verdict.DUPLICATE
        others = set().union(*(taken for other, taken in enumerate(self.taken) if other != worker))
        is_locked = self.writer not in (None, worker)
        return Verdict.IN_FLIGHT if key in others or is_locked else Verdict.NEW

    def end(self, worker: int, *, commits: bool) -> None:
        """A worker commits or rolls back."""
        if commits:
            self.connections[worker].commit()
            self.committed |= self.taken[worker]
        else:
            self.connections[worker].rollback()
        self.taken[worker] = set()
        if self.writer == worker:
            self.writer = None


acts = st.one_of(
    st.tuples(st.just("accept"), st.integers(0, 2), st.lists(keys, min_size=1, max_size=4), st.booleans()),
    st.tuples(st.just("end"), st.integers(0, 2), st.booleans()),
)


def test_open_transactions_know_of_each_other(migrated: Database, engine: Engine) -> None:
    """Three workers take messages, singly or in batches, commit and roll back in any order: every verdict is
    the one that the model expects, and every committed key took effect once."""
    slow = migrated.name == "mysql"  # it waits at least a second, even with wait=0

    usual = settings.get_profile("on servers")

    @settings(usual, max_examples=5 if slow else usual.max_examples)
    @given(plan=st.lists(acts, max_size=8 if slow else 20))
    def check(plan: list[tuple[object, ...]]) -> None:
        _interleave(engine, plan)

    check()


def _interleave(engine: Engine, plan: list[tuple[object, ...]]) -> None:
    level = {} if engine.dialect.name == "sqlite" else {"isolation_level": "READ COMMITTED"}
    committing = engine.execution_options(**level)
    consumer = new_world(engine).inbox.consumer
    connections = [committing.connect() for _ in range(3)]
    workers = Workers(engine, Inbox(consumer, wait=0), connections, [set(), set(), set()])
    try:
        for act in plan:
            match act:
                case ("accept", int(worker), list(batch), bool(one_by_one)):
                    workers.accept(worker, batch, one_by_one=one_by_one)
                case ("end", int(worker), bool(commits)):
                    workers.end(worker, commits=commits)
    finally:
        for connection in connections:
            connection.close()
    totals = accounts.totals(engine)
    effects = {key for number, key in enumerate(KEYS) for _ in range(totals[f"{consumer}/{number}"])}
    assert effects == workers.committed
    assert max(totals[f"{consumer}/{number}"] for number in range(len(KEYS))) <= 1
