"""Candidate indexes for finding the rows to purge, and their cost for `accept`.

Four copies of the inbox differ only in that index. Two consumers share each copy: one is purged after seven
days, the other keeps its rows longer.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from statistics import median
from typing import Any

from sqlalchemy import Connection, Engine, Table, delete, text
from sqlalchemy.schema import DropIndex

from inbox import Inbox

from ._accepts import BATCH, batches, single
from ._business import CONSUMER
from ._filling import add_rows, create, ddl, quoted, vacuum
from ._lab import Lab, run_alone
from ._measure import Grid, Rates, Report, ratios

_INDEXES = {
    "none": None,
    "brin": "USING brin (accepted_at)",
    "time": "(accepted_at)",
    "consumer_time": "(consumer, accepted_at)",
}
_TITLES = {
    "none": "no index",
    "brin": "BRIN (accepted_at)",
    "time": "B-tree (accepted_at)",
    "consumer_time": "B-tree (consumer, accepted_at)",
}
_SIZE = text("SELECT pg_relation_size(format('%I.purging', CAST(:name AS text)))")
_DAY = timedelta(days=1)
_DAYS = 7
_CYCLES = 10


@dataclass(frozen=True, slots=True)
class _Finding:
    """The server's work to find one batch of rows to purge."""

    milliseconds: float
    blocks: int

    def __str__(self) -> str:
        return f"{self.milliseconds:.2f} ms, {self.blocks:,} blocks"


@dataclass(frozen=True, slots=True)
class _State:
    """One copy at one time: its index's size, the cost of a batch, and of finding that none is left."""

    megabytes: float
    batch: _Finding
    nothing: _Finding


def indexes(lab: Lab) -> Report:
    """No index, BRIN and B-trees: rate of accepts, size, and cost of finding a batch, at first and later."""
    rows = lab.sized(1_000_000, 200_000, 2_000)
    base = datetime.now(UTC)
    with lab.database("indexes") as engine:
        copies = {name: _copy(lab, engine, name, rows, base) for name in _INDEXES}
        fresh = {name: _state(engine, copy, name, base) for name, copy in copies.items()}
        for name, copy in copies.items():
            _age(lab, engine, copy, name, rows, base)
        now = base + _CYCLES * _DAY
        later = {name: _state(engine, copy, name, now) for name, copy in copies.items()}
        boxes = {name: Inbox(CONSUMER, schema=name) for name in _INDEXES}
        one = {name: single(engine, box) for name, box in boxes.items()}
        many = {name: batches(engine, box) for name, box in boxes.items()}
        run_alone(engine, "CHECKPOINT")  # so that all copies write equally many full pages afterwards
        rates = tuple(
            lab.compare(title, variants, turns=2)
            for title, variants in (("accept, by index", one), ("accept_many, by index", many))
        )
    return Report(grids=[_rates_grid(*rates), _states_grid(fresh, later, rows)])


def _copy(lab: Lab, engine: Engine, name: str, rows: int, base: datetime) -> Table:
    """A copy with a week of the purged consumer's rows, and older rows of the other."""
    with lab.step(f"{_TITLES[name]}: filling {rows * 3 // 2:,} rows"):
        message = create(engine, name)
        with engine.begin() as connection:
            connection.execute(DropIndex(next(iter(message.indexes))))
            if _INDEXES[name] is not None:
                index = ddl(f"CREATE INDEX purging ON %(fullname)s {_INDEXES[name]}")
                connection.execute(index.against(message))
            month = base - 30 * _DAY, base - 8 * _DAY
            add_rows(connection, message, rows // 2, *month, consumer="other")
            add_rows(connection, message, rows, base - _DAYS * _DAY, base)
        vacuum(engine, message)
    return message


def _age(lab: Lab, engine: Engine, message: Table, name: str, rows: int, base: datetime) -> None:
    """Simulate days of use: purge the oldest day, vacuum, and add a new day's rows to the freed space."""
    tick = lab.task(f"{_TITLES[name]}: {_CYCLES} purges", _CYCLES)
    c = message.c
    for day in range(_CYCLES):
        now = base + day * _DAY
        with engine.begin() as connection:
            old = c.accepted_at < now - (_DAYS - 1) * _DAY
            connection.execute(delete(message).where(c.consumer == CONSUMER, old))
        vacuum(engine, message)
        with engine.begin() as connection:
            add_rows(connection, message, rows // _DAYS, now, now + _DAY)
        tick()
    vacuum(engine, message)


def _state(engine: Engine, message: Table, name: str, now: datetime) -> _State:
    with engine.connect() as connection:
        size = 0 if _INDEXES[name] is None else connection.execute(_SIZE, {"name": name}).scalar_one()
        due = _find(connection, message, name, now - (_DAYS - 1) * _DAY)
        nothing = _find(connection, message, name, now - (_DAYS + 1) * _DAY)
    return _State(size / 2**20, due, nothing)


def _find(connection: Connection, message: Table, name: str, horizon: datetime) -> _Finding:
    """The cost of finding one batch; rows are ordered only where an index provides the order for free."""
    order = "ORDER BY accepted_at" if name.endswith("time") else ""
    found = text(
        "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT ctid FROM "
        f"{quoted(message)} WHERE consumer = :consumer AND accepted_at < :horizon {order} LIMIT 500"
    )
    if name == "brin":
        connection.execute(text("SET LOCAL enable_seqscan = off"))
    parameters = {"consumer": CONSUMER, "horizon": horizon}
    runs: list[Any] = [connection.execute(found, parameters).scalar_one()[0] for _ in range(5)]
    connection.rollback()
    plan = runs[-1]["Plan"]
    blocks = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
    return _Finding(median(run["Execution Time"] for run in runs), blocks)


def _rates_grid(one: Rates, many: Rates) -> Grid:
    rows = [
        [
            _TITLES[name],
            f"{median(ratios(one, name, 'none')):.2f}",
            f"{median(ratios(many, name, 'none')):.2f}",
        ]
        for name in _INDEXES
    ]
    columns = ["index for purging", "accept", f"accept_many of {BATCH}"]
    return Grid("Rate of accepts, relative to no index for purging", columns, rows)


def _states_grid(fresh: Mapping[str, _State], later: Mapping[str, _State], rows: int) -> Grid:
    lines = [
        [_TITLES[name], when, f"{state.megabytes:.1f}", str(state.batch), str(state.nothing)]
        for name in _INDEXES
        for when, state in (("new", fresh[name]), (f"{_CYCLES} purges", later[name]))
    ]
    columns = ["index for purging", "table", "MB", "find 500 rows", "find that none is due"]
    return Grid(f"Finding rows to purge among {rows:,}, beside a consumer that keeps its own", columns, lines)
