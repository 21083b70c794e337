"""`inbox-outbox inbox ...`: look at the inbox, and keep it small."""

from datetime import UTC, datetime, timedelta
from typing import Annotated, Self

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

import inbox
from inbox import Purged
from inbox.errors import InvalidOption

from ._connect import Json, Schema, Url, engine_at
from ._exit import NOT_FOUND, UNFINISHED
from ._print import as_json, duration, grid, size

app = typer.Typer(help="The exactly-once path's inbox.", no_args_is_help=True)


@app.command()
def status(url: Url, schema: Schema = None, json: Json = False) -> None:
    """Rows, rate, age and size of every consumer."""
    with engine_at(url, schema) as engine:
        found = inbox.status(engine, schema=schema)
    if json:
        as_json(found)
        return
    now = datetime.now(UTC)
    grid(
        ("consumer", "rows", "in the last hour", "oldest", "newest", "size"),
        [
            (
                each.consumer,
                f"{each.rows:,}",
                f"{each.rows_last_hour:,}",
                f"{duration(now - each.oldest)} ago",
                f"{duration(now - each.newest)} ago",
                size(each.bytes),
            )
            for each in found
        ],
    )


@app.command()
def show(
    url: Url,
    consumer: Annotated[str, typer.Argument(help="The inbox's name.")],
    key: Annotated[str, typer.Argument(help="The key as it is stored; a tuple is a JSON array.")],
    schema: Schema = None,
    json: Json = False,
) -> None:
    """One message that was taken; exit code 3 if the inbox does not know it."""
    with engine_at(url, schema) as engine:
        found = inbox.show(engine, consumer, key, schema=schema)
    if found is None:
        typer.echo(f"inbox-outbox: consumer {consumer!r} has not taken {key!r}", err=True)
        raise typer.Exit(NOT_FOUND)
    if json:
        as_json(found)
        return
    grid(
        ("column", "value"),
        [
            ("consumer", found.consumer),
            ("key", found.key),
            ("accepted_at", found.accepted_at.isoformat()),
            ("claim", found.claim),
            ("digest", found.digest or "-"),
            ("result", found.result or "-"),
        ],
    )


@app.command()
def purge(
    url: Url,
    consumer: Annotated[
        str | None, typer.Option(help="Whose rows; all if not given.", metavar="NAME")
    ] = None,
    older_than: Annotated[
        str, typer.Option(help="How long keys are kept: 30s, 15m, 12h or 7d.", metavar="TIME")
    ] = "7d",
    oldest_unconsumed: Annotated[
        str | None,
        typer.Option(
            help="When the oldest message was made that the broker still holds: ISO 8601, UTC if not said.",
            metavar="WHEN",
        ),
    ] = None,
    batch: Annotated[int, typer.Option(help="Rows in a transaction, at most.")] = 500,
    budget: Annotated[
        str | None,
        typer.Option(help="Stop after this time, like 10m; exit code 4 if work is left.", metavar="TIME"),
    ] = None,
    schema: Schema = None,
    json: Json = False,
) -> None:
    """Delete rows that no duplicate can need any more, beside live traffic."""
    with engine_at(url, schema) as engine, _Progress() as show_progress:
        done = inbox.purge(
            engine,
            consumer=consumer,
            retention=_time("older-than", older_than),
            oldest_unconsumed=None if oldest_unconsumed is None else _when(oldest_unconsumed),
            batch=batch,
            budget=None if budget is None else _time("budget", budget),
            progress=show_progress,
            schema=schema,
        )
    if json:
        as_json(done)
    else:
        print(f"{done.rows:,} rows deleted in {done.batches:,} batches, {done.seconds:.1f} s")
    if not done.finished:
        raise typer.Exit(UNFINISHED)


class _Progress:
    """A line that counts while the purge runs, on a terminal only."""

    def __enter__(self) -> Self:
        columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
        console = Console(stderr=True)
        self._bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._bar.add_task("purging", total=None)
        self._bar.start()
        return self

    def __call__(self, done: Purged) -> None:
        rate = done.rows / done.seconds if done.seconds else 0
        self._bar.update(self._task, description=f"{done.rows:,} rows deleted, {rate:,.0f}/s")

    def __exit__(self, *failure: object) -> None:
        self._bar.stop()


_UNITS = {
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
}
_LONGEST = timedelta(days=36_500)


def _time(option: str, text: str) -> timedelta:
    """A time such as 30s, 15m, 12h or 7d."""
    number, unit = text[:-1], text[-1:]
    if unit not in _UNITS or not (number.isascii() and number.isdecimal()):
        raise InvalidOption(f"--{option}={text!r}: expected a time such as 30s, 15m, 12h or 7d")
    if len(number) > 12 or (time := int(number) * _UNITS[unit]) > _LONGEST:
        raise InvalidOption(f"--{option}={text!r}: expected at most {_LONGEST.days}d")
    return time


def _when(text: str) -> datetime:
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidOption(
            f"--oldest-unconsumed={text!r}: expected a time such as 2026-01-31T18:00+01:00"
        ) from None
    return when if when.tzinfo else when.replace(tzinfo=UTC)
