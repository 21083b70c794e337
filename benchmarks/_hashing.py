"""What partitions by a hash of the key are worth: a key's time, and what it takes to forget a day's keys."""

import multiprocessing
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from time import perf_counter
from typing import Any

from sqlalchemy import Engine, create_engine, text

import inbox
from inbox import Inbox, schema

from ._accepts import batches, single
from ._business import CONSUMER
from ._filling import fill, quoted
from ._lab import Lab, run_alone
from ._measure import Grid, Report, figure, ratios
from ._wal import alone

_PARTS = (0, 16, 64)
_WORKERS = 4
_DAY = timedelta(days=1)
_DELETE = """
    DELETE FROM {part} WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM {part}
        WHERE consumer = :consumer AND accepted_at < :horizon AND accepted_at >= :after
        ORDER BY accepted_at LIMIT 500 FOR UPDATE SKIP LOCKED))
    RETURNING accepted_at
"""


_WRITTEN = text("SELECT pg_current_wal_insert_lsn() - '0/0'")
_Part = tuple[Callable[..., int], tuple[Any, ...]]
"""What a process does."""


def worth(lab: Lab) -> Report:
    """Time of `accept`, of a purge and of the vacuum after it, and their log, by number of partitions."""
    rows = lab.sized(10_000_000, 1_000_000, 2_000)
    with lab.database("hashing", connections=2) as engine:
        for parts in _PARTS:
            with lab.step(f"filling {_named(parts)}"):
                fill(engine, _schema(parts), rows, parts=parts)
        boxes = {_named(parts): Inbox(CONSUMER, schema=_schema(parts)) for parts in _PARTS}
        run_alone(engine, "CHECKPOINT")
        one = lab.compare("accept", {name: single(engine, box) for name, box in boxes.items()}, turns=2)
        many = lab.compare("accept_many", {name: batches(engine, box) for name, box in boxes.items()})
        with alone(engine, full_pages=True):
            lines = [
                (f"{_named(parts)}: {said}", *line)
                for parts in _PARTS
                for said, line in _forgetting(lab, engine, parts).items()
            ]
    title = f"a day of seven, of {rows:,} keys, is forgotten"
    head = ("partitions", "purge, s", "bytes of log for a key", "vacuum, s", "bytes of log for a key")
    plain = _named(0)
    return Report(
        [
            figure(f"{what}: {_named(parts)} / none", ratios(rates, plain, _named(parts)))
            for what, rates in (("time of accept", one), ("time of a key in accept_many", many))
            for parts in _PARTS[1:]
        ],
        [Grid(title, head, lines)],
    )


def _named(parts: int) -> str:
    return f"{parts} partitions" if parts else "one table"


def _schema(parts: int) -> str:
    return f"by_{parts}"


def _forgetting(lab: Lab, engine: Engine, parts: int) -> dict[str, list[str]]:
    """A day is purged by one process, and the next one by several, each with partitions of its own; and the
    vacuum after each."""
    name = _schema(parts)
    tables = [f"{name}.inbox_message_{number}" for number in range(parts)]
    table = quoted(schema.tables(name).message)
    shares = [tables[worker::_WORKERS] for worker in range(_WORKERS)] if parts else [[table]] * _WORKERS
    horizon = datetime.now(UTC) - 5 * _DAY
    ways: dict[str, tuple[list[_Part], list[_Part]]] = {
        "inbox.purge": ([(_purge, (name, 6 * _DAY))], [(_vacuum, ([table],))]),
        f"{_WORKERS} at a time": (
            [(_delete, (share, horizon)) for share in shares],
            [(_vacuum, (share,)) for share in shares[: None if parts else 1]],
        ),
    }
    found = {}
    for title, steps in ways.items():
        figures, keys = [], 0
        for step in steps:
            with lab.step(f"{_named(parts)}, {title}"):
                run_alone(engine, "CHECKPOINT")
                began, before = perf_counter(), _log(engine)
                keys = _together(engine, step) or keys
                figures += [perf_counter() - began, (_log(engine) - before) / keys]
        found[title] = [f"{each:,.0f}" for each in figures]
    return found


def _log(engine: Engine) -> float:
    with engine.connect() as connection:
        return float(connection.execute(_WRITTEN).scalar_one())


def _together(engine: Engine, work: list[_Part]) -> int:
    """The sum of what these functions return, each in a process of its own."""
    address = engine.url.render_as_string(hide_password=False)
    with multiprocessing.get_context("spawn").Pool(len(work)) as pool:
        running = [pool.apply_async(function, (address, *given)) for function, given in work]
        return sum(each.get() for each in running)


def _purge(address: str, name: str, until: timedelta) -> int:
    engine = create_engine(address)
    purged = inbox.purge(
        engine, consumer=CONSUMER, retention=until, override=True, schema=name, sleep=lambda _: None
    )
    engine.dispose()
    return purged.rows


def _delete(address: str, tables: list[str], horizon: datetime) -> int:
    """Delete the old rows of these tables as a purge does of a plain one: by their places."""
    engine, deleted = create_engine(address), 0
    for table in tables:
        statement, after = text(_DELETE.format(part=table)), datetime.min.replace(tzinfo=UTC)
        while True:
            given = {"consumer": CONSUMER, "horizon": horizon, "after": after}
            with engine.begin() as connection:
                found = connection.execute(statement, given).scalars().all()
            deleted += len(found)
            if len(found) < 500:
                break
            after = max(found)
    engine.dispose()
    return deleted


def _vacuum(address: str, tables: list[str]) -> int:
    engine = create_engine(address)
    run_alone(engine, *(f"VACUUM {table}" for table in tables))
    engine.dispose()
    return 0
