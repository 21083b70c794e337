"""Many workers take the same messages at the same time."""

from collections import Counter
from functools import partial
from itertools import product

import pytest
from sqlalchemy import Connection, Engine

from inbox import Inbox, Verdict, is_transient
from tests.support import accounts
from tests.support.database import Database
from tests.support.on_servers import WITH_WRITERS
from tests.support.together import Broker, together

pytestmark = pytest.mark.mysql

WORKERS = 16
COPIES = 5
ACCOUNTS = tuple(f"account {number}" for number in range(WORKERS))


def deliver_copies(engine: Engine, keys: int) -> Broker[int]:
    """Deliver several copies of each message at the same time to a handler that is not idempotent, and check
    the totals."""
    accounts.make(engine, ACCOUNTS)

    @Inbox("bookkeeping").handler(engine, key=lambda number: f"transfer-{number}")
    def book(connection: Connection, number: int) -> None:
        accounts.add(connection, ACCOUNTS[number % len(ACCOUNTS)], number)

    broker = Broker(number for number in range(keys) for _ in range(COPIES))
    broker.deliver(book, WORKERS)
    expected = {name: sum(range(start, keys, WORKERS)) for start, name in enumerate(ACCOUNTS)}
    assert accounts.totals(engine) == expected
    assert broker.verdicts[Verdict.NEW] == keys
    assert broker.verdicts[Verdict.DUPLICATE] == keys * (COPIES - 1)
    return broker


@pytest.mark.quick("postgresql", "mariadb", "sqlite")
def test_copies_delivered_at_the_same_time_take_effect_once(migrated: Database) -> None:
    """16 workers get 200 messages, each 5 times at the same time: the totals are exact."""
    deliver_copies(migrated.engine(pool_size=WORKERS), keys=200)


@pytest.mark.quick("postgresql", "mariadb")
@pytest.mark.parametrize(
    ("server", "level"),
    [*product(WITH_WRITERS, ["REPEATABLE READ", "SERIALIZABLE"]), ("sqlite", "SERIALIZABLE")],
    indirect=["server"],
)
def test_strict_isolation_stays_exact_through_retries(migrated: Database, level: str) -> None:
    """Where a race raises an error, retries and redelivery still give exact totals."""
    deliver_copies(migrated.engine(pool_size=WORKERS, isolation_level=level), keys=100)


def test_batches_in_opposite_order_never_deadlock(migrated: Database) -> None:
    """Four writers take the same keys at the same time, two of them in opposite order, 10 times: there is no
    error, and each key is NEW to exactly one of them."""
    engine, inbox = migrated.engine(), Inbox("bookkeeping", wait=30)

    def take(keys: list[str]) -> Counter[str]:
        with engine.begin() as connection:
            verdicts = inbox.accept_many(connection, keys)
        assert set(verdicts) <= {Verdict.NEW, Verdict.DUPLICATE}
        return Counter(key for key, verdict in zip(keys, verdicts, strict=True) if verdict is Verdict.NEW)

    for turn in range(10):
        keys = [f"{turn}/{number}" for number in range(200)]
        taken = together([partial(take, keys), partial(take, keys[::-1])] * 2)
        assert sum(taken, Counter()) == Counter(keys)


def test_single_messages_and_batches_share_keys(migrated: Database) -> None:
    """Among workers that take single messages and workers that take batches, exactly one takes each key."""
    level = {} if migrated.name == "sqlite" else {"isolation_level": "READ COMMITTED"}
    engine, inbox = migrated.engine(pool_size=8, **level), Inbox("bookkeeping", wait=30)
    keys = [f"key-{number}" for number in range(60)]

    def one_at_a_time() -> list[str]:
        return [key for key in keys if _take(engine, inbox, [key], batch=False)]

    def in_batches() -> list[str]:
        parts = [keys[start : start + 10] for start in range(0, len(keys), 10)]
        return [key for part in parts for key in _take(engine, inbox, part, batch=True)]

    taken = together([one_at_a_time, in_batches] * 3)
    assert Counter(key for part in taken for key in part) == Counter(keys)


def _take(engine: Engine, inbox: Inbox, keys: list[str], *, batch: bool) -> list[str]:
    """Take the keys, retrying while any is in flight, and return those that were NEW."""
    while True:
        try:
            with engine.begin() as connection:
                verdicts = (
                    inbox.accept_many(connection, keys)
                    if batch
                    else [inbox.accept(connection, key) for key in keys]
                )
                if Verdict.IN_FLIGHT in verdicts:
                    connection.rollback()
                    continue
        except Exception as error:
            if is_transient(error):
                continue
            raise
        return [key for key, verdict in zip(keys, verdicts, strict=True) if verdict is Verdict.NEW]
