"""The cost of a key: alone, in a batch, as a duplicate, in a large table, and for the client."""

import os
import random
import time
from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import Engine, text
from sqlalchemy.dialects import postgresql

from inbox import Inbox, schema
from inbox_outbox_base.databases.postgresql.taking_statements import add_at_once

from ._business import CONSUMER, new_keys
from ._cpu import Call, as_grid, driving, in_transactions
from ._filling import fill
from ._lab import Lab, run_alone
from ._measure import Operation, Report, figure, ratios

BATCH = 100
_MILLION = 1_000_000
_UNNEST = """
    INSERT INTO inbox_message (consumer, key, claim)
    SELECT %(consumer)s, key, %(claim)s FROM unnest(%(keys)s::text[]) AS key ORDER BY key COLLATE "C"
    ON CONFLICT DO NOTHING RETURNING key
"""
_BY_HAND = text(
    "INSERT INTO by_hand (consumer, key, claim, digest) VALUES (:consumer, :key, :claim, :digest)"
)
Keys = Callable[[], str]


def random_key() -> str:
    """A key that falls anywhere in the index."""
    return f"{random.getrandbits(128):032x}"


def timed_key() -> str:
    """A UUID of version 7 for a message that was made a second ago: a key that seems to come from the future
    makes `accept` ask the database for its time."""
    milliseconds = time.time_ns() // 1_000_000 - 1_000
    return str(UUID(f"{milliseconds:012x}7{uuid4().hex[13:]}"))


UUIDS: Mapping[str, tuple[str, Keys]] = {
    "random": ("random keys", lambda: str(uuid4())),
    "uuid7": ("keys that name their time", timed_key),
}
"""Keys of the same form, by name: what they are called in results, and how they are made."""


def order_keys() -> Keys:
    """Increasing keys, like order numbers."""
    numbers = new_keys()
    return lambda: f"order-{next(numbers):015}"


def single(engine: Engine, box: Inbox, key: Keys = random_key) -> Operation:
    """One key in a transaction."""

    def accept(_: int) -> int:
        with engine.begin() as connection:
            box.accept(connection, key())
        return 1

    return accept


def batches(engine: Engine, box: Inbox, key: Keys = random_key) -> Operation:
    """A hundred keys in a transaction."""

    def accept(_: int) -> int:
        keys = [key() for _ in range(BATCH)]
        with engine.begin() as connection:
            box.accept_many(connection, keys)
        return BATCH

    return accept


def _batches_by_hand(engine: Engine, key: Keys) -> Operation:
    message = schema.tables().message
    added = postgresql.insert(message).on_conflict_do_nothing().returning(message.c.key)

    def accept(_: int) -> int:
        fixed = {"consumer": CONSUMER, "claim": os.urandom(16), "digest": None}
        rows = [{**fixed, "key": key()} for _ in range(BATCH)]
        with engine.begin() as connection:
            set(connection.execute(added, rows).scalars())
        return BATCH

    return accept


def _batches_by_driver(engine: Engine, key: Keys) -> Operation:
    """The minimum: one statement and a COMMIT, without SQLAlchemy and without a bounded wait."""
    driver: Any = engine.raw_connection().driver_connection

    def accept(_: int) -> int:
        row = {"consumer": CONSUMER, "claim": os.urandom(16), "keys": [key() for _ in range(BATCH)]}
        driver.execute(_UNNEST, row).fetchall()
        driver.commit()
        return BATCH

    return accept


def many(lab: Lab) -> Report:
    """`accept_many` against single accepts, and against a multi-row INSERT written by hand."""
    report = Report()
    for kind, key in (("ordered", order_keys()), ("random", random_key)):
        with lab.database(f"many_{kind}", connections=2) as engine:
            schema.metadata.create_all(engine)
            box = Inbox(CONSUMER)
            variants = {
                "many": batches(engine, box, key),
                "one": single(engine, box, key),
                "by hand": _batches_by_hand(engine, key),
                "driver": _batches_by_driver(engine, key),
            }
            rates = lab.compare(f"accept_many, {kind} keys", variants)
        many = f"{kind} keys: accept_many of {BATCH}"
        report.figures += [
            figure(f"{many} / accept", ratios(rates, "many", "one"), at_least=40),
            figure(f"{many} / by hand", ratios(rates, "many", "by hand"), at_least=0.8),
            figure(f"{kind} keys: one bare statement of {BATCH} / accept", ratios(rates, "driver", "one")),
        ]
    return report


def duplicates(lab: Lab) -> Report:
    """A refused duplicate against a fresh accept: its time, and the dead rows it leaves behind."""
    box = Inbox(CONSUMER)
    old = [random_key() for _ in range(lab.sized(1_000, 1_000, 50))]
    with lab.database("duplicates") as engine:
        schema.metadata.create_all(engine)
        run_alone(engine, "ALTER TABLE inbox_message SET (autovacuum_enabled = off)")
        with engine.begin() as connection:
            box.accept_many(connection, old)
        again = single(engine, box, lambda: random.choice(old))
        variants = {
            "again": again,
            "fresh": single(engine, box),
            "handled": _handled(engine, box, old),
            "remembered": _handled(engine, Inbox(CONSUMER, remember=len(old)), old),
        }
        rates = lab.compare("duplicates", variants, turns=2)
        dead = _dead_rows(engine, again, repeats=len(old))
    slower = [1 / ratio for ratio in ratios(rates, "again", "fresh")]
    rows = figure("dead rows of a refused duplicate", [dead], at_most=0)
    saved = figure("a remembered duplicate / one that is not", ratios(rates, "remembered", "handled"))
    return Report([figure("time of a refused duplicate / accept", slower, at_most=1), rows, saved])


def _handled(engine: Engine, box: Inbox, keys: list[str]) -> Operation:
    """Duplicates that reach a handler."""

    @box.handler(engine, key=lambda message: message)
    def handle(connection: object, message: str) -> None:
        raise AssertionError("it is no duplicate")

    for key in keys:
        handle(key)

    def work(_: int) -> int:
        handle(random.choice(keys))
        return 1

    return work


def _dead_rows(engine: Engine, again: Operation, repeats: int) -> float:
    """Dead rows per duplicate, counted by the server."""
    before = _count_dead(engine)
    for _ in range(repeats):
        again(0)
    return (_count_dead(engine) - before) / repeats


def _count_dead(engine: Engine) -> int:
    engine.dispose()  # a session reports its counts when it ends
    with engine.connect() as connection:
        connection.execute(text("SELECT pg_sleep(1)"))
        found = text("SELECT n_dead_tup FROM pg_stat_user_tables WHERE relname = 'inbox_message'")
        return int(connection.execute(found).scalar_one())


def cpu(lab: Lab) -> Report:
    """The client's CPU for `accept` in an open transaction, against a text INSERT into a table like ours. The
    limits: the statement of `accept` as SQLAlchemy hands a text to the driver, and the driver alone."""
    box, key = Inbox(CONSUMER), order_keys()
    with lab.database("accept_cpu") as engine:
        schema.metadata.create_all(engine)
        run_alone(engine, "CREATE TABLE by_hand (LIKE inbox_message INCLUDING ALL)")
        ours = str(add_at_once(schema.tables()).compile(dialect=engine.dialect))

        def row() -> dict[str, Any]:
            return {"consumer": CONSUMER, "key": key(), "claim": os.urandom(16), "digest": None}

        variants: dict[str, Call] = {
            "accept": lambda connection: box.accept(connection, key()),
            "text": lambda connection: connection.execute(_BY_HAND, row()),
            "same": lambda connection: connection.exec_driver_sql(ours, row()),
            "driver": driving(_BY_HAND, engine, row),
        }
        micros = in_transactions(lab, "client CPU of accept", engine, variants)
    what = "client CPU in an open transaction"
    return Report(
        [
            figure(f"{what}: accept / text INSERT", ratios(micros, "accept", "text"), at_most=1.15),
            figure(f"{what}: its statement by exec_driver_sql / same", ratios(micros, "same", "text")),
            figure(f"{what}: text INSERT by psycopg alone / same", ratios(micros, "driver", "text")),
        ],
        [as_grid("accept", micros)],
    )


def size(lab: Lab) -> Report:
    """`accept` in a large table against a small one, with random keys: they touch all of the index."""
    large, small = lab.sized(10 * _MILLION, _MILLION, 2_000), lab.sized(10_000, 10_000, 200)
    with lab.database("size") as engine:
        for name, rows in (("small", small), ("large", large)):
            with lab.step(f"filling a table with {rows:,} rows"):
                fill(engine, name, rows)
        run_alone(engine, "CHECKPOINT")
        variants = {name: single(engine, Inbox(CONSUMER, schema=name)) for name in ("small", "large")}
        rates = lab.compare("accept in tables of both sizes", variants, turns=2)
    slower = [1 / ratio for ratio in ratios(rates, "large", "small")]
    return Report([figure(f"time of accept: {large:,} rows / {small:,} rows", slower, at_most=1.3)])
