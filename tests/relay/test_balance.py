"""Relays share the buckets no matter which of them joins, leaves or is lost, and in which order they
notice."""

import random
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial

import pytest
from sqlalchemy import Connection, Engine, update

from inbox_outbox_base.databases.registry import relaying
from outbox._operating.transact import transact
from outbox._relaying.members import Members, share_of
from outbox.schema import BUCKETS
from tests.support.database import Database
from tests.support.on_servers import spread
from tests.support.outbox_publishers import TABLES
from tests.support.relay.crashes import engine_of, ownership

MEMBERS = Members(TABLES)
LEASE = 600
LONG_AGO = datetime(2026, 1, 1, tzinfo=UTC)
STEPS = 60


class Group:
    """Relays on one database; only their membership is real."""

    def __init__(self, engine: Engine, choice: random.Random) -> None:
        self.epochs: list[int] = []
        self._engine = engine
        self._choice = choice

    def join(self) -> None:
        """A relay joins; it owns no buckets yet."""
        join = partial(MEMBERS.join, name="a", lease=LEASE, generation=1, keeps_sent=True)
        self.epochs.append(transact(self._engine, TABLES, join))

    def leave(self) -> None:
        """A relay leaves."""
        transact(self._engine, TABLES, partial(MEMBERS.leave, epoch=self._any()))

    def lose(self) -> None:
        """A relay is lost: its lease expires."""
        ended = update(TABLES.relay).where(TABLES.relay.c.epoch == self._any()).values(lease_until=LONG_AGO)
        transact(self._engine, TABLES, lambda connection: connection.execute(ended))

    def tend_one(self) -> None:
        """A relay chosen at random tends the group."""
        self.tend(self._choice.choice(self.epochs))

    def tend(self, epoch: int) -> float:
        """The relay with this epoch renews its lease, retires expired relays and balances its share; return
        the seconds until it wants to do this again."""

        def work(connection: Connection) -> float:
            # As a relay does: on SQLite, only a transaction that has written keeps the others from writing.
            relaying(connection.dialect.name, TABLES).renew(connection, epoch, 1, LEASE)
            MEMBERS.retire_expired(connection, epoch)
            return MEMBERS.balance(connection, epoch, busy=())[1]

        return transact(self._engine, TABLES, work)

    def tend_all(self) -> Iterable[float]:
        """All relays tend the group, up to three at the same time."""
        in_some_order = self._choice.sample(self.epochs, len(self.epochs))
        with ThreadPoolExecutor(3) as pool:
            return [*pool.map(self.tend, in_some_order)]

    def _any(self) -> int:
        return self.epochs.pop(self._choice.randrange(len(self.epochs)))


@spread("most", [7, BUCKETS + 6])
def test_shares(migrated: Database, most: int) -> None:
    """Relays join, leave and are lost at random. After each live relay has balanced its share three times,
    every bucket has an owner, and the shares differ by one at most."""
    seed = random.randrange(1_000_000)
    choice = random.Random(seed)
    engine = engine_of(migrated)
    group = Group(engine, choice)
    for _ in range(2 + most // 2):
        group.join()
    for step in range(STEPS):
        if len(group.epochs) < most and choice.random() < 0.5:
            group.join()
        elif len(group.epochs) > 1:
            choice.choice([group.leave, group.lose, group.tend_one])()
        if step % 12 == 11:
            _check(engine, group, seed)


def _check(engine: Engine, group: Group, seed: int) -> None:
    for _ in range(3):
        again = group.tend_all()
    owned = ownership(engine)
    shares = [owned.pop(epoch, 0) for epoch in group.epochs]
    assert not owned, f"seed {seed}: buckets without a relay at work"
    assert max(shares) - min(shares) <= 1, f"seed {seed}"
    assert min(again) > LEASE / 2, f"seed {seed}: a relay looks for buckets that it need not have"


@pytest.mark.parametrize("relays", [1, 2, 3, 20, 63, 64, 65, 100])
def test_shares_add_up(relays: int) -> None:
    """The shares add up to all buckets and differ by one at most; older relays have the larger ones."""
    epochs = random.sample(range(1, 1_000), relays)
    shares = {each: share_of(each, [*{*epochs} - {each}], BUCKETS) for each in epochs}
    assert sum(shares.values()) == BUCKETS
    in_order = [shares[each] for each in sorted(epochs)]
    assert in_order == sorted(in_order, reverse=True)
    assert max(in_order) - min(in_order) <= 1
