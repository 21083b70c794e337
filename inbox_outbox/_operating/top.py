"""`inbox-outbox top`: the overviews on the terminal, again and again."""

import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.live import Live
from rich.text import Text
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from inbox import DatabaseOverview, InboxOverview
from inbox_outbox._connect import Schema
from inbox_outbox._operating.each_database import EachDatabase, Urls, engines_at
from inbox_outbox._print import printable, table, terminal
from inbox_outbox._times import length
from inbox_outbox_base.errors import secrets
from outbox import OutboxOverview

from .looking import look
from .over_time import lines_of
from .problems import HealthLimits, problems
from .topics import STATES_SAID, rows_of
from .units import duration, size

_ROWS = 15
"""The most topics, and consumers."""


def top(
    url: Urls,
    every: Annotated[str, typer.Option(help="How long to wait between two looks.", metavar="TIME")] = "2s",
    schema: Schema = None,
) -> None:
    """What needs somebody, the topics, the relays and the consumers, live; Ctrl-C ends it.

    Without a terminal it looks once. "~" marks an estimate, "+" a number of which only a part was counted.
    """
    seconds = max(1.0, length("every", every).total_seconds())
    console = terminal()
    with engines_at(url, schema) as engines:
        show = partial(_shown, schema=schema, width=console.width)
        if "" in engines:
            first, again = show(engines[""]), partial(_again, engines[""], show)
        else:
            again = partial(_all_shown, EachDatabase(engines, show))
            first = again()
        if not console.is_terminal:
            console.print(first)
            return
        try:
            with Live(first, console=console, screen=True, auto_refresh=False) as live:
                while True:
                    time.sleep(seconds)
                    live.update(again(), refresh=True)
        except KeyboardInterrupt:
            return


def _again(engine: Engine, show: Callable[[Engine], Group]) -> Group:
    try:
        return show(engine)
    except SQLAlchemyError as error:  # it goes on once the database answers
        return Group(_away(secrets.reason(error)))


def _all_shown(databases: EachDatabase[Group]) -> Group:
    """One database below the other."""
    parts: list[Any] = []
    for name, shown in databases.answers().items():
        parts += [Text(name, style="bold"), _away(shown) if isinstance(shown, str) else shown, Text()]
    return Group(*parts)


def _away(why: str) -> Text:
    return Text(printable(f"{time.strftime('%H:%M:%S')} {why}"), style="red")


def _shown(engine: Engine, schema: str | None, width: int) -> Group:
    halves = look(engine, schema)
    inbox, outbox = halves.inbox, halves.outbox
    database = next(each.database for each in (outbox, inbox) if each is not None)
    parts: list[Any] = [Text(printable(f"{database.place}, {database.now:%Y-%m-%d %H:%M:%S} UTC"))]
    found = problems(inbox, outbox, HealthLimits())
    parts += [Text(printable(each.text), style="bold red") for each in found]
    if not found and not halves.unseen:
        parts.append(Text("nothing needs you", style="green"))
    if outbox is not None:
        parts += _of_outbox(outbox, width)
    if inbox is not None:
        parts += _of_inbox(inbox, width)
    if lines := lines_of(engine, schema, halves):
        parts.append(Text("the last hour, by the minute:\n" + "\n".join(lines)))
    parts += [Text(printable(each)) for each in (*_of_database(database), *halves.unseen)]
    return Group(*parts)


def _of_outbox(found: OutboxOverview, width: int) -> Iterator[Any]:
    states = ("pending", "waiting", "unknown", "held", "delayed", "dead")
    counts = [str(getattr(found, state)) for state in states]
    oldest = "-" if found.oldest_age is None else duration(timedelta(seconds=found.oldest_age))
    yield table((*states, "oldest", "of no relay"), [(*counts, oldest, str(found.unowned))], width)
    if found.waiting.number or found.unknown.number:
        yield Text(STATES_SAID)
    headings, rows = rows_of(found)
    if rows:
        yield table(headings, rows[:_ROWS], width)
    if len(rows) > _ROWS or found.has_more_topics:
        yield Text("there are more topics: see `inbox-outbox outbox status --by-topic`")
    relays = [
        (each.name, str(each.buckets), "lost" if each.lease_left < 0 else "live", str(each.sending))
        for each in found.relays
    ]
    if relays:
        yield table(("relay", "buckets", "lease", "sending"), relays, width)


def _of_inbox(found: InboxOverview, width: int) -> Iterator[Any]:
    states = ("consuming", "lost", "failed", "dead", "halted")
    rows = [
        (
            each.consumer,
            str(each.taken),
            *(str(getattr(each, state)) for state in states),
            str(each.rejected),
            str(each.refused),
            "-" if each.overdue == 0 else duration(timedelta(seconds=each.overdue)),
        )
        for each in found.consumers[:_ROWS]
    ]
    if rows:
        headings = ("consumer", "taken in 1 h", *states, "rejected", "refused in 1 d", "overdue")
        yield table(headings, rows, width)
    if len(found.consumers) > _ROWS or found.has_more_consumers:
        yield Text("there are more consumers: see `inbox-outbox inbox status`")


def _of_database(found: DatabaseOverview) -> Iterator[str]:
    dead = sum(each.dead_rows or 0 for each in found.tables)
    yield f"tables {size(found.bytes)}" + (f", {dead:,} dead rows" if dead else "")
    if found.long_snapshot is not None:
        since = found.long_snapshot.since
        age = "" if since is None else f" for {duration(found.now - since)}"
        yield f"{found.long_snapshot.holder} has held the oldest snapshot{age}"
    if found.unseen is not None:
        yield f"not seen: {found.unseen}"
