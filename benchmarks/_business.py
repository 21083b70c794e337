"""Business work, done in three ways: without an inbox, with a hand-written one, and with `Inbox`."""

import itertools
import os
import random
from functools import cache

from sqlalchemy import (
    Column,
    Engine,
    Insert,
    Integer,
    MetaData,
    Table,
    Update,
    bindparam,
    func,
    insert,
    literal,
    select,
    update,
)
from sqlalchemy.dialects import postgresql

from inbox import Inbox, schema

from ._measure import Operation

ROWS_PER_WORKER = 1_000
CONSUMER = "benchmark"

metadata = MetaData()
account = Table(
    "account",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("balance", Integer, nullable=False),
    postgresql_with={"fillfactor": 50},
)


@cache
def add_to_account() -> Update:
    """The business write."""
    raised = account.c.balance + bindparam("amount")
    return update(account).where(account.c.id == bindparam("number")).values(balance=raised)


@cache
def add_row(schema_name: str | None = None) -> Insert:
    """The INSERT of a hand-written inbox."""
    message = schema.tables(schema_name).message
    added = postgresql.insert(message).on_conflict_do_nothing()
    return added.execution_options(preserve_rowcount=True)


def prepare(engine: Engine, workers: int) -> None:
    """Create the inbox and enough accounts for each worker that none waits for a row."""
    schema.metadata.create_all(engine)
    metadata.create_all(engine)
    number = func.generate_series(0, workers * ROWS_PER_WORKER - 1).column_valued("number")
    rows = select(number, literal(0))
    with engine.begin() as connection:
        connection.execute(insert(account).from_select(["id", "balance"], rows))


def new_keys() -> "itertools.count[int]":
    """Unused order numbers."""
    return itertools.count(random.SystemRandom().randrange(10**12))


def variants(engine: Engine) -> dict[str, Operation]:
    """The same business write in three ways; each call is one transaction with one message."""
    box = Inbox(CONSUMER)
    numbers = new_keys()
    add, spend = add_row(), add_to_account()

    def amount(worker: int) -> dict[str, int]:
        return {"number": worker * ROWS_PER_WORKER + random.randrange(ROWS_PER_WORKER), "amount": 1}

    def bare(worker: int) -> int:
        with engine.begin() as connection:
            connection.execute(spend, amount(worker))
        return 1

    def by_hand(worker: int) -> int:
        row = {"consumer": CONSUMER, "key": f"order-{next(numbers)}", "claim": os.urandom(16), "digest": None}
        with engine.begin() as connection:
            if connection.execute(add, row).rowcount == 1:
                connection.execute(spend, amount(worker))
        return 1

    def with_inbox(worker: int) -> int:
        with box.transaction(engine, f"order-{next(numbers)}") as work:
            if work.is_new:
                work.connection.execute(spend, amount(worker))
        return 1

    return {"bare": bare, "by hand": by_hand, "inbox": with_inbox}
