"""`inbox-outbox inbox ...`: inspect and purge the inbox."""

import signal
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Annotated

import typer

import inbox
from inbox import (
    ConsumerStatus,
    Message,
    Policy,
    Purged,
    PurgeService,
    SqlStore,
    Status,
)
from inbox.errors import InvalidOption, TablesMissing
from inbox_outbox_base.calls.signals import stopping
from inbox_outbox_base.transactions.policy import brief
from inbox_outbox_base.words.counted import counted

from ._connect import Json, Prefix, Schema, StoreUrl, Url, engine_at, store_at
from ._exit import NOT_FOUND, UNFINISHED
from ._group import CommandGroup
from ._operating.deciding import By, Consumer, DryRun, Key, Why
from ._operating.progress import ProgressLine
from ._operating.units import duration, size
from ._place import place_of, print_place
from ._print import as_json, grid
from ._records import as_object, print_record
from ._running.log import telling
from ._times import DURATIONS, length, point

app = CommandGroup(help="The inbox, in both modes.")


@app.command()
def status(url: Url, schema: Schema = None, json: Json = False) -> None:
    """Rows, rate, age, size and policy of every consumer; in status-table mode, messages by status."""
    with engine_at(url, schema) as engine:
        place = place_of(engine, schema)
        found = inbox.status(engine, schema=schema)
    if json:
        as_json(found)
        return
    print_place(place)
    taken, recorded = [each for each in found if each.rows], [each for each in found if each.messages]
    if not taken and not recorded:
        print("no messages, neither of the exactly-once path nor of status-table mode")
    if taken:
        _print_rows(taken)
    if recorded:
        _print_messages(recorded)
    if declared := [each.policy for each in found if each.policy]:
        _print_policies(declared)


def _print_rows(found: list[ConsumerStatus]) -> None:
    now = datetime.now(UTC)
    grid(
        ("consumer", "rows", "in the last hour", "oldest", "newest", "size"),
        [
            (
                each.consumer,
                f"{each.rows:,}",
                f"{each.rows_last_hour:,}",
                *(
                    "-" if when is None else f"{duration(now - when)} ago"
                    for when in (each.oldest, each.newest)
                ),
                size(each.bytes),
            )
            for each in found
        ],
    )
    for each in found:
        if each.rows_without_load:
            lost = f"{counted(each.rows_without_load, 'row')} without a load in inbox_ledger"
            print(f"{each.consumer}: {lost}; no purge deletes them")


def _print_messages(found: list[ConsumerStatus]) -> None:
    grid(
        ("consumer", *Status),
        [(each.consumer, *(f"{each.messages.get(one, 0):,}" for one in Status)) for each in found],
    )


def _print_policies(found: list[Policy]) -> None:
    grid(
        ("consumer", "mode", "retention", "dead retention", "key time", "since"),
        [
            (
                each.consumer,
                each.mode,
                brief(each.retention),
                "-" if each.dead_retention is None else brief(each.dead_retention),
                each.key_time or "-",
                each.since.isoformat(timespec="seconds"),
            )
            for each in found
        ],
    )


@app.command()
def show(
    url: StoreUrl,
    consumer: Consumer,
    key: Key,
    schema: Schema = None,
    prefix: Prefix = "inbox",
    payload: Annotated[bool, typer.Option("--payload", help="Write only the stored payload.")] = False,
    json: Json = False,
) -> None:
    """One message that was taken, in either mode.

    Exit code 3 if the inbox does not know it.
    """
    with store_at(url, schema, prefix) as store:
        record = message = None
        if isinstance(store, SqlStore):
            message = inbox.show(store.engine, consumer, key, schema=schema)
        with suppress(TablesMissing):  # an application with the exactly-once path alone: `show` has found it
            record = inbox.show_message(store, consumer, key)
    if record is None and message is None:
        typer.echo(f"inbox-outbox: consumer {consumer!r} has not taken {key!r}", err=True)
        raise typer.Exit(NOT_FOUND)
    if payload:
        _write_payload(None if record is None else record.payload)
        return
    if json:
        in_status_mode = None if record is None else as_object(record)
        as_json(in_status_mode if message is None else asdict(message) | {"record": in_status_mode})
        return
    if message is not None:
        _print_message(message)
    if record is not None:
        print_record(record)


def _write_payload(payload: bytes | None) -> None:
    if payload is None:
        typer.echo("inbox-outbox: no payload of this message is stored", err=True)
        raise typer.Exit(NOT_FOUND)
    typer.echo(payload, nl=False)


def _print_message(found: Message) -> None:
    grid(
        ("column", "value"),
        [
            ("consumer", found.consumer),
            ("key", found.key),
            ("accepted_at", "-" if found.accepted_at is None else found.accepted_at.isoformat()),
            ("claim", found.claim or "-"),
            ("load", "-" if found.load is None else str(found.load)),
            ("digest", found.digest or "-"),
            ("result", found.result or "-"),
        ],
    )


def _purge_every(url: str, every: timedelta, schema: str | None, *, json: bool) -> None:
    with engine_at(url, schema) as engine, telling("inbox.purge"):
        service = PurgeService(engine, every, schema=schema)
        service.check()
        with stopping(service.stop, signal.SIGINT):
            service.run()
    if json:
        as_json({"purges": service.purges, "rows": service.rows, "failures": service.failures})
    else:
        deleted, purges = counted(service.rows, "message"), counted(service.purges, "purge")
        print(f"{deleted} deleted in {purges}, {service.failures:,} failed")


@app.command()
def purge(
    url: Url,
    consumer: Annotated[
        str | None, typer.Option(help="Only this consumer's rows; all by default.", metavar="NAME")
    ] = None,
    older_than: Annotated[
        str | None,
        typer.Option(
            help=f"Keep messages for this time ({DURATIONS}), not for the consumers' own times.",
            metavar="TIME",
        ),
    ] = None,
    dead_older_than: Annotated[
        str | None, typer.Option(help="The same for dead and halted messages.", metavar="TIME")
    ] = None,
    override: Annotated[
        bool,
        typer.Option(
            "--override",
            help="Allow times shorter than the consumers' own: their duplicates are then taken again.",
        ),
    ] = False,
    oldest_unconsumed: Annotated[
        str | None,
        typer.Option(
            help="When the oldest unacknowledged message was created: ISO 8601, UTC by default.",
            metavar="WHEN",
        ),
    ] = None,
    dry_run: DryRun = False,
    every: Annotated[
        str | None,
        typer.Option(
            help="Purge so often until SIGTERM or Ctrl-C; of several processes one at a time does it.",
            metavar="TIME",
        ),
    ] = None,
    batch: Annotated[int, typer.Option(help="The most rows in a transaction.", metavar="NUMBER")] = 500,
    budget: Annotated[
        str | None,
        typer.Option(help="Stop after this time, such as 10m; exit code 4 if work is left.", metavar="TIME"),
    ] = None,
    schema: Schema = None,
    json: Json = False,
) -> None:
    """Delete the messages of both modes that are past their retention; live traffic goes on."""
    if every is not None:
        once = (consumer, older_than, dead_older_than, override, oldest_unconsumed, dry_run, budget)
        if any(once) or batch != 500:
            raise InvalidOption("--every: expected no other option of a purge: each keeps the stored times")
        _purge_every(url, length("every", every), schema, json=json)
        return
    with engine_at(url, schema) as engine, ProgressLine("purging") as line:
        place = place_of(engine, schema)
        line.show(f"purging {place}")
        done = inbox.purge(
            engine,
            consumer=consumer,
            retention=length("older-than", older_than),
            dead_retention=length("dead-older-than", dead_older_than),
            override=override,
            dry_run=dry_run,
            oldest_unconsumed=point("oldest-unconsumed", oldest_unconsumed),
            batch=batch,
            budget=length("budget", budget),
            progress=partial(_show, line),
            schema=schema,
        )
    if json:
        as_json({"database": asdict(place)} | asdict(done))
    else:
        print_place(place)
        batches = "would be deleted" if dry_run else f"deleted in {done.batches:,} batches"
        print(f"{done.rows:,} rows {batches}, {done.seconds:.1f} s")
        if done.assumed:
            print(f"no retention is stored for {', '.join(map(repr, done.assumed))}: used 7d")
    if not done.finished:
        raise typer.Exit(UNFINISHED)


def _show(line: ProgressLine, done: Purged) -> None:
    rate = done.rows / done.seconds if done.seconds else 0
    line.show(f"{counted(done.rows, 'row')} deleted, {rate:,.0f}/s")


@app.command("set-policy")
def set_policy(
    url: Url,
    consumer: Consumer,
    retention: Annotated[
        str | None, typer.Option(help=f"How long its messages are kept: {DURATIONS}.", metavar="TIME")
    ] = None,
    dead_retention: Annotated[
        str | None, typer.Option(help="How long its dead and halted messages are kept.", metavar="TIME")
    ] = None,
    mode: Annotated[
        str | None,
        typer.Option(help="exactly-once or status; required if nothing is stored yet.", metavar="MODE"),
    ] = None,
    key_time: Annotated[
        str | None,
        typer.Option(
            help="The form of keys that name their time: uuid7, ulid or timed; if nothing is stored yet.",
            metavar="FORM",
        ),
    ] = None,
    by: By = None,
    why: Why = None,
    schema: Schema = None,
    json: Json = False,
) -> None:
    """Change a consumer's stored policy; only this command can shorten its retention."""
    with engine_at(url, schema) as engine:
        stored = inbox.set_policy(
            engine,
            consumer,
            retention=length("retention", retention),
            dead_retention=length("dead-retention", dead_retention),
            mode=mode,  # type: ignore[arg-type]  # checked by the call
            key_time=key_time,  # type: ignore[arg-type]  # the same
            by=by,
            why=why,
            schema=schema,
        )
    if json:
        as_json(stored)
    else:
        _print_policies([stored])
