"""What it takes to forget a day's keys: a partition that is dropped, beside rows that a purge deletes."""

import multiprocessing
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from multiprocessing.synchronize import Event
from statistics import median, quantiles
from time import perf_counter, sleep

from sqlalchemy import Engine, create_engine, insert, text, update

import inbox
from inbox import Inbox, schema, timed_key
from inbox_outbox_base.checks.key_times import FORMS
from inbox_outbox_base.databases.registry import partitioning

from ._accepts import random_key
from ._business import CONSUMER
from ._filling import create, vacuum
from ._lab import Lab, run_alone
from ._measure import Grid, Report, figure

_SECONDS = 4.0
"""How long accepts are timed without a drop, and then around one."""
_PER_SECOND = 50
"""Accepts per second: so few that none waits for another one, on a busy machine, too."""
_DAY = timedelta(days=1)
_PAST = 9
"""Days ago: these keys are older than the retention."""
_KEYS = text(
    """
    SELECT CAST(:consumer AS text), to_char(at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')
           || jsonb_build_array(gen_random_uuid()), at, decode('00112233445566778899aabbccddeeff', 'hex')
    FROM (
        SELECT CAST(:first AS timestamptz) + n * CAST(:step AS interval) AS at
        FROM generate_series(0, :rows - 1) AS n
    ) AS times
    """
).columns()
_LSN = text("SELECT pg_current_wal_lsn() - '0/0'")


def log(lab: Lab) -> Report:
    """The log that is written to forget a key, until its space is free again: by rows, and by a partition."""
    rows = lab.sized(3_000_000, 1_000_000, 2_000)
    found: dict[str, tuple[float, float]] = {}
    with lab.database("forgetting", connections=2) as engine:
        for name in ("rows", "days"):
            with lab.step(f"forgetting {rows:,} keys by {name}"):
                found[name] = _forget(engine, name, rows)
    title = f"bytes of log to forget a key, of {rows:,} in a day"
    lines = [
        (said, f"{found[name][0]:,.2f}", f"{found[name][1]:.2f}")
        for name, said in (("rows", "purge and VACUUM"), ("days", "DROP, and the partition of a day to come"))
    ]
    return Report(
        figures=[figure(f"{title}: with partitions (950 B -> <= 1 B)", [found["days"][0]], at_most=1)],
        grids=[Grid(title, ("keys are forgotten by", "bytes", "seconds"), lines)],
    )


def latency(lab: Lab) -> Report:
    """The 99th percentile of `accept` around the drop of a day, and without one."""
    windows = lab.sized(24, 6, 2)
    seconds = lab.pause(_SECONDS)
    quiet: list[list[float]] = []
    busy: list[list[float]] = []
    days = [_today() - number * _DAY for number in range(_PAST + windows - 1, _PAST - 1, -1)]
    with lab.database("dropping", connections=2) as engine:
        _fill(engine, "days", days, lab.sized(20_000, 20_000, 20))
        tick = lab.task("accept around the drop of a day", windows)
        _latencies(engine, seconds)
        for day in days:
            quiet.append(_latencies(engine, seconds))
            _close(engine, "days", day + _DAY)
            with _dropping(engine, seconds / 2):
                busy.append(_latencies(engine, seconds))
            tick()
        if left := [
            each for each in inbox.partitions(engine, dry_run=True, schema="days") if each.end <= day
        ]:
            raise AssertionError(f"{len(left)} partitions are left")
    pairs = list(zip(quiet, busy, strict=True))
    slower = [_p99(during) / _p99(without) for without, during in pairs]
    middle = [median(during) / median(without) for without, during in pairs]
    around = "of accept around the drop of a day / without"
    return Report([figure(f"p99 {around}", slower, at_most=1.1), figure(f"median {around}", middle)])


def _today() -> datetime:
    return datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)


def _forget(engine: Engine, name: str, rows: int) -> tuple[float, float]:
    """The bytes of log for each key, and the seconds in all."""
    day = _today() - _PAST * _DAY
    _fill(engine, name, [day], rows)
    _close(engine, name, day + _DAY)
    run_alone(engine, "CHECKPOINT")
    began, before = perf_counter(), _written(engine)
    if name == "days":
        inbox.partitions(engine, ahead=3 * _DAY, schema=name)
    else:
        deleted = inbox.purge(engine, consumer=CONSUMER, schema=name, sleep=lambda _: None).rows
        if deleted != rows:
            raise AssertionError(f"{deleted} rows of {rows} were deleted")
        vacuum(engine, schema.tables(name).message)
    return (_written(engine) - before) / rows, perf_counter() - began


def _written(engine: Engine) -> float:
    with engine.connect() as connection:
        return float(connection.execute(_LSN).scalar_one())


def _fill(engine: Engine, name: str, days: Sequence[datetime], rows: int) -> None:
    """An inbox in a schema of this name, with so many keys of each of these days. `days` has partitions for
    these and for the next two days."""
    message = create(engine, name)
    inbox.set_policy(engine, CONSUMER, mode="exactly-once", key_time="timed", schema=name)
    by, since = partitioning("postgresql"), FORMS["timed"].since
    ends = [days[0] + number * _DAY for number in range((_today() - days[0]).days + 4)]
    with engine.begin() as connection:
        if name == "days" and by is not None:
            lowest = by.announce(connection, message, CONSUMER, lambda _: since(days[0]))
            labels = {f"{end - _DAY:%Y%m%d}": since(end) for end in ends[1:]}
            by.begin(connection, message, CONSUMER, lowest, labels)
        horizon = {"consumer": CONSUMER, "keys_from": "", "keys_gone": ""}
        until = since(ends[-1]) if name == "days" else None
        connection.execute(insert(schema.tables(name).horizon), horizon | {"keys_until": until})
    columns = ["consumer", "key", "accepted_at", "claim"]
    with engine.begin() as connection:
        for first in days:
            given = {"consumer": CONSUMER, "first": first, "step": _DAY / rows, "rows": rows}
            connection.execute(insert(message).from_select(columns, _KEYS), given)
    vacuum(engine, message)


def _close(engine: Engine, name: str, end: datetime) -> None:
    """As if purges had closed what is older, minutes ago."""
    table, key = schema.tables(name).horizon, FORMS["timed"].since(end)
    with engine.begin() as connection:
        connection.execute(update(table).values(keys_from=key, keys_gone=key, stored_at=end))


def _latencies(engine: Engine, seconds: float) -> list[float]:
    """Seconds for each accept, until committed, from when it was due."""
    box = Inbox(CONSUMER, key_time="timed", schema="days")
    found = []
    start = perf_counter()
    for number in range(round(seconds * _PER_SECOND)):
        due = start + number / _PER_SECOND
        if (early := due - perf_counter()) > 0:
            sleep(early)
            due = perf_counter()
        with engine.begin() as connection:
            box.accept(connection, timed_key(datetime.now(UTC), random_key()))
        found.append(perf_counter() - due)
    return found


def _p99(latencies: list[float]) -> float:
    return quantiles(latencies, n=100)[98]


@contextmanager
def _dropping(engine: Engine, after: float) -> Iterator[None]:
    """Another process drops a day, and makes one, in the middle of the block."""
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    address = engine.url.render_as_string(hide_password=False)
    process = context.Process(target=_drop, args=(address, ready, after))
    process.start()
    ready.wait(30)
    try:
        yield
    finally:
        process.join()


def _drop(address: str, ready: Event, after: float) -> None:
    engine = create_engine(address)
    inbox.partitions(engine, dry_run=True, schema="days")  # so that the start of a process is not measured
    ready.set()
    sleep(after)
    inbox.partitions(engine, schema="days")
    engine.dispose()
