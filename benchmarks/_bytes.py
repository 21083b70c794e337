"""The bytes of a message: in tables and indexes, and in the server's log, from `publish` until its key is
forgotten."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import uuid4

from sqlalchemy import Engine, Table, text, update

from inbox import Inbox, SqlStore, StatusInbox, purge, schema, set_policy
from outbox import Message, Outbox, Relay

from ._accepts import BATCH, UUIDS, batches, single
from ._business import CONSUMER, new_keys
from ._filling import add_load, create, fill, quoted
from ._lab import Lab, run_alone
from ._measure import Grid, Operation, Report
from ._outbox_lab import running
from ._outbox_rows import PAYLOAD, SIZE, TOPIC, Counting
from ._wal import Work, Written, alone, repeat, written

_MANY = 1_000
"""Messages of one `publish_many`."""
_KEEP = timedelta(days=1)
_SIZE = text("SELECT pg_relation_size(CAST(:name AS regclass))")
_INDEX_SIZES = text(
    "SELECT pg_relation_size(indexrelid) FROM pg_index WHERE indrelid = CAST(:name AS regclass) "
    "ORDER BY indisprimary DESC"
)
_SETTINGS = text(
    "SELECT name || ' ' || setting FROM pg_settings WHERE name IN ('data_checksums', 'wal_compression')"
)
_STEPS = ("publish", "accept", "relay", "vacuum of the outbox", "purge", "vacuum of the inbox")
_FORGETTING = _STEPS[2:]
"""Mostly DELETE and vacuum."""
Logs = dict[str, Written]
"""By what was done."""


@dataclass(frozen=True, slots=True)
class _Amounts:
    kept: int
    """Rows in the inbox."""
    once: int
    """Messages of a measurement that makes a transaction for each of them, or touches the kept rows."""
    many: int
    """Messages of the others."""


def sizes(lab: Lab) -> Report:
    """Rows and their index entries; and the log, without full pages and right after a checkpoint."""
    amounts = lab.sized(
        _Amounts(1_000_000, 2_000, 100_000), _Amounts(200_000, 1_000, 20_000), _Amounts(2_000, 50, 200)
    )
    with lab.database("bytes", connections=6) as engine:
        schema.metadata.create_all(engine)
        with alone(engine, full_pages=True), lab.step("rows"):
            rows = list(_rows(engine, amounts))
        for name, (title, _) in UUIDS.items():
            with lab.step(f"filling a table with {amounts.kept:,} {title}"):
                fill(engine, name, amounts.kept, is_timed=name == "uuid7")
        logs: list[Logs] = []
        for days, full_pages in ((6, False), (5, True)):
            found: Logs = {}
            with alone(engine, full_pages=full_pages), lab.step("log"):
                for name in UUIDS:
                    found |= _inbox_log(engine, amounts, days, name)
                found |= _status_log(engine, amounts) | _outbox_log(engine, amounts)
            logs.append(found)
        with engine.connect() as connection:
            settings = ", ".join(connection.scalars(_SETTINGS))
    return Report(grids=list(_grids(rows, logs[0], logs[1], amounts.kept, settings)))


def _rows(engine: Engine, amounts: _Amounts) -> Iterator[list[str]]:
    """What the libraries' calls, or rows like those of the Spark writer, leave in empty tables."""
    for name, (title, key) in UUIDS.items():
        message = create(engine, f"{name}_rows")
        take = batches(engine, _box(name, f"{name}_rows"), key)
        yield _row(engine, message, title, repeat(take, amounts.many)())
    bulk = create(engine, "bulk_rows")
    with engine.begin() as connection:
        add_load(connection, schema.tables("bulk_rows"), amounts.many, datetime.now(UTC))
    yield _row(engine, bulk, "random keys written by Spark", amounts.many)
    tables = schema.tables()
    yield _row(engine, tables.status, "random keys", repeat(_claiming(engine), amounts.many // 10)())
    waiting = repeat(_publishing(engine, _MANY), amounts.many)()
    yield _row(engine, tables.outbox.message, "waiting", waiting)
    sent = Relay(engine, Counting(), keep_sent=_KEEP).run_once()
    yield _row(engine, tables.outbox.sent, "kept with keep_sent", sent)


def _row(engine: Engine, table: Table, what: str, rows: int) -> list[str]:
    name = {"name": quoted(table)}
    with engine.connect() as connection:
        heap = connection.execute(_SIZE, name).scalar_one()
        primary, *others = connection.scalars(_INDEX_SIZES, name)
    found = [each / rows for each in (heap, primary, sum(others), heap + primary + sum(others))]
    return [f"{table.name}, {what}", *(f"{each:,.0f}" for each in found)]


def _inbox_log(engine: Engine, amounts: _Amounts, days: int, name: str) -> Logs:
    """Keys are taken, and those of one day of the week are forgotten; then, those of some hours more."""
    (title, key), box = UUIDS[name], _box(name, name)
    works = {
        "accept": repeat(single(engine, box, key), amounts.once),
        f"accept_many of {BATCH}": repeat(batches(engine, box, key), amounts.once),
    }
    found = {what: _checkpointed(engine, work) for what, work in works.items()}
    kept = timedelta(days=days)
    found["purge"], found["vacuum of the inbox"] = _forget(engine, name, kept)
    _, found["vacuum after a 50th of the keys"] = _forget(engine, name, kept - timedelta(days=7) / 50)
    return {f"{what}, {title}": each for what, each in found.items()}


def _forget(engine: Engine, name: str, kept: timedelta) -> tuple[Written, Written]:
    """The logs of a purge, and of the vacuum after it."""
    set_policy(engine, CONSUMER, retention=kept, schema=name)
    _settle(engine, name)
    if name == "uuid7":
        _purge(engine, name)  # closes; the next one deletes
        _settle(engine, name)
    purged = _checkpointed(engine, lambda: _purge(engine, name))
    return purged, _vacuum(engine, schema.tables(name).message, purged.messages)


def _status_log(engine: Engine, amounts: _Amounts) -> Logs:
    work = repeat(_claiming(engine), amounts.once)
    return {"claim and complete, random keys": _checkpointed(engine, work)}


def _outbox_log(engine: Engine, amounts: _Amounts) -> Logs:
    """Messages leave before the next checkpoint."""
    message, found = schema.tables().outbox.message, Logs()
    publish = repeat(_publishing(engine), amounts.once)
    publish_many = repeat(_publishing(engine, _MANY), amounts.many)
    relay, keeping = Relay(engine, Counting()), Relay(engine, Counting(), keep_sent=_KEEP)
    relay.run_once()  # what it writes only at first
    run_alone(engine, f"VACUUM {quoted(message)}")
    found["publish"] = _checkpointed(engine, publish)
    found[f"publish_many of {_MANY:,}"] = _checkpointed(engine, publish_many)
    found["relay"] = written(engine, relay.run_once)
    found["vacuum of the outbox"] = _vacuum(engine, message, found["relay"].messages)
    publish_many()
    found["relay with keep_sent"] = written(engine, keeping.run_once)
    run_alone(engine, f"VACUUM {quoted(message)}")
    found["publish beside a relay, until sent"] = _checkpointed(engine, lambda: _until_sent(engine, publish))
    return found


def _until_sent(engine: Engine, publish: Work) -> int:
    publisher = Counting()
    with running(Relay(engine, publisher)):
        published = publish()
        while publisher.count < published:
            time.sleep(0.01)
    return published


def _checkpointed(engine: Engine, work: Work) -> Written:
    """Its log right after a checkpoint."""
    run_alone(engine, "CHECKPOINT")
    return written(engine, work)


def _vacuum(engine: Engine, table: Table, rows: int) -> Written:
    """Its log for each of the rows that were deleted before; it cleans the indexes, however few they were."""

    def work() -> int:
        run_alone(engine, f"VACUUM (INDEX_CLEANUP ON) {quoted(table)}")
        return rows

    return written(engine, work)


def _purge(engine: Engine, name: str) -> int:
    return purge(engine, consumer=CONSUMER, schema=name, sleep=lambda _: None).rows


def _settle(engine: Engine, name: str) -> None:
    """Some minutes pass: policies and horizons count."""
    tables, before = schema.tables(name), datetime.now(UTC) - timedelta(minutes=5)
    with engine.begin() as connection:
        connection.execute(update(tables.consumer).values(declared_at=before))
        connection.execute(update(tables.horizon).values(stored_at=before))


def _box(name: str, in_schema: str) -> Inbox:
    return Inbox(CONSUMER, schema=in_schema, key_time="uuid7" if name == "uuid7" else None)


def _claiming(engine: Engine) -> Operation:
    inbox = StatusInbox(CONSUMER, store=SqlStore(engine))

    def work(_: int) -> int:
        with inbox.claim(str(uuid4())):
            return 1

    return work


def _publishing(engine: Engine, batch: int = 1) -> Operation:
    """In one transaction; each message has its own key."""
    outbox, numbers = Outbox(), new_keys()

    def work(_: int) -> int:
        messages = [Message(TOPIC, PAYLOAD, f"order-{next(numbers)}") for _ in range(batch)]
        with engine.begin() as connection:
            outbox.publish_many(connection, messages)
        return batch

    return work


def _grids(
    rows: Sequence[Sequence[str]], records: Logs, full: Logs, kept: int, settings: str
) -> Iterator[Grid]:
    yield Grid(
        f"Bytes of a row, with a payload of {SIZE} bytes",
        ["row of", "table", "primary key", "other indexes", "together"],
        rows,
    )
    yield Grid(
        f"Bytes of log for a message, {kept:,} keys in the inbox; {settings}",
        ["what", "transaction ids", "changes alone", "with full pages, after a checkpoint"],
        [
            [what, f"{each.transactions:.3f}", f"{each.log:,.0f}", f"{full[what].log:,.0f}"]
            for what, each in records.items()
        ],
    )
    sums = [_steps(found, title) for title, _ in UUIDS.values() for found in (records, full)]
    shares = [f"{sum(each[-len(_FORGETTING) :]) / sum(each):.0%}" for each in sums]
    lines = [(step, [each[place] for each in sums]) for place, step in enumerate(_STEPS)]
    lines.append(("sum", [sum(each) for each in sums]))
    yield Grid(
        "Bytes of log from publish to forgotten, publish and accept in transactions of their own",
        ["step", *(name for title, _ in UUIDS.values() for name in (title, "the same, with full pages"))],
        [
            *([step, *(f"{log:,.0f}" for log in found)] for step, found in lines),
            ["to forget, of the sum", *shares],
        ],
    )


def _steps(found: Logs, title: str) -> list[float]:
    return [(found.get(step) or found[f"{step}, {title}"]).log for step in _STEPS]
