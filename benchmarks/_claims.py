"""The cost of a message in status-table mode: against bare statements, and in rows written."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial

from sqlalchemy import Column, Engine, Insert, MetaData, Table, Text, text
from sqlalchemy.dialects import postgresql

from inbox import SqlStore, StatusInbox, schema

from ._business import CONSUMER, new_keys
from ._lab import Lab, run_alone
from ._measure import Grid, Operation, Report, figure, ratios

bare_table = Table(
    "bare_status",
    MetaData(),
    Column("consumer", Text, primary_key=True),
    Column("key", Text, primary_key=True),
    Column("status", Text, nullable=False),
)
_MESSAGES = 200


def rate(lab: Lab) -> Report:
    """Claim and complete around an empty handler, against two upserts: each in a transaction, as written by
    hand, and bare, on an open autocommit connection."""
    with _prepared(lab, "claim") as engine, engine.connect() as connection:
        connection.execution_options(isolation_level="AUTOCOMMIT")
        variants = {
            "bare": _two_upserts(connection.execute),
            "by hand": _two_upserts(partial(_in_transaction, engine)),
            "claim": _claim(engine),
            "duplicate": _duplicate(engine),
            "remembered": _duplicate(engine, remember=_MESSAGES),
        }
        rates = lab.compare("claim + complete", variants, turns=2)
    return Report(
        [
            figure("claim + complete / two bare upserts", ratios(rates, "claim", "bare"), at_least=0.8),
            figure("claim + complete / two transactions by hand", ratios(rates, "claim", "by hand")),
            figure("a duplicate / claim + complete", ratios(rates, "duplicate", "claim")),
            figure("a remembered duplicate / one that is not", ratios(rates, "remembered", "duplicate")),
        ]
    )


def writes(lab: Lab) -> Report:
    """The number of rows written for each kind of message, counted by the server."""
    with _prepared(lab, "writes") as engine:
        inbox = StatusInbox(CONSUMER, store=SqlStore(engine), lease=timedelta(minutes=10))
        rows = [
            ("claim and complete", 0, 0),
            ('a step with on_unknown="retry"', 1, 0),
            ('a step with on_unknown="halt"', 0, 1),
        ]
        measured = []
        for name, steps, halting in rows:
            keys = [f"{name} {number}" for number in range(_MESSAGES)]
            measured.append((name, _rows_written(engine, inbox, keys, steps, halting)))
        base = measured[0][1]
        keys = [f"claim and complete {number}" for number in range(_MESSAGES)]
        measured.append(("a duplicate of a consumed message", _rows_written(engine, inbox, keys, 0, 0)))
    counted = {name: written - base for name, written in measured[1:3]} | dict(measured[3:])
    return Report(
        [
            figure('rows written for a step with on_unknown="retry"', [counted[rows[1][0]]], at_most=1),
            figure("rows written for a duplicate", [counted["a duplicate of a consumed message"]], at_most=0),
        ],
        [Grid("rows written for a message", ("what", "rows"), [[n, f"{w:g}"] for n, w in measured])],
    )


@contextmanager
def _prepared(lab: Lab, name: str) -> Iterator[Engine]:
    with lab.database(name, connections=2) as engine:
        schema.metadata.create_all(engine)
        bare_table.create(engine)
        run_alone(engine, "ALTER TABLE inbox_status SET (autovacuum_enabled = off)")
        yield engine


def _in_transaction(engine: Engine, statement: Insert, parameters: dict[str, str]) -> None:
    with engine.begin() as connection:
        connection.execute(statement, parameters)


def _two_upserts(execute: Callable[[Insert, dict[str, str]], object]) -> Operation:
    added = postgresql.insert(bare_table)
    upsert = added.on_conflict_do_update(
        index_elements=[bare_table.c.consumer, bare_table.c.key], set_={"status": added.excluded.status}
    )
    numbers = new_keys()

    def work(worker: int) -> int:
        key = {"consumer": CONSUMER, "key": f"order-{next(numbers)}"}
        execute(upsert, key | {"status": "consuming"})
        execute(upsert, key | {"status": "consumed"})
        return 1

    return work


def _claim(engine: Engine) -> Operation:
    inbox, numbers = StatusInbox(CONSUMER, store=SqlStore(engine)), new_keys()

    def work(worker: int) -> int:
        with inbox.claim(f"order-{next(numbers)}") as claim:
            expect(claim.is_new)
        return 1

    return work


def _duplicate(engine: Engine, remember: int = 0) -> Operation:
    inbox = StatusInbox(CONSUMER, store=SqlStore(engine), remember=remember)
    keys = [f"old-{remember}-{number}" for number in range(_MESSAGES)]
    for key in keys:
        with inbox.claim(key):
            pass
    again = itertools.cycle(keys)

    def work(worker: int) -> int:
        with inbox.claim(next(again)) as claim:
            expect(not claim.is_new)
        return 1

    return work


def expect(holds: bool) -> None:
    """Check that what was measured has done its work."""
    if not holds:
        raise AssertionError("the claim went another way")


def _rows_written(engine: Engine, inbox: StatusInbox, keys: list[str], steps: int, halting: int) -> float:
    """Rows inserted and updated for one message."""
    before = _count(engine)
    for key in keys:
        with inbox.claim(key) as claim:
            for number in range(steps if claim.is_new else 0):
                claim.step(f"step {number}", lambda: "done")
            for number in range(halting if claim.is_new else 0):
                claim.step(f"halting step {number}", lambda: "done", on_unknown="halt")
    return (_count(engine) - before) / len(keys)


def _count(engine: Engine) -> int:
    engine.dispose()  # a session reports its counts when it ends, at the latest
    with engine.connect() as connection:
        connection.execute(text("SELECT pg_stat_clear_snapshot()"))
        counted = text(
            "SELECT n_tup_ins + n_tup_upd + n_tup_del FROM pg_stat_user_tables WHERE relname = 'inbox_status'"
        )
        return int(connection.execute(counted).scalar_one())
