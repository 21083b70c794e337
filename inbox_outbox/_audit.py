"""`inbox-outbox audit`: find messages that were committed and never taken."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated

import typer
from sqlalchemy import Engine

import outbox
from outbox import Audit

from ._connect import Json, Schema, Url, engine_at
from ._exit import MISSING
from ._print import as_json, duration, grid
from ._times import length, point


class TakenBy(StrEnum):
    """The consumer's key: a message's key or its id."""

    KEY = "key"
    ID = "id"


def audit(
    url: Url,
    topic: Annotated[str, typer.Option(help="Of which messages.", metavar="NAME")],
    consumer: Annotated[str, typer.Option(help="The inbox's name.", metavar="NAME")],
    key: Annotated[
        TakenBy, typer.Option(help="What the consumer takes messages by: their keys, or their ids.")
    ] = TakenBy.KEY,
    inbox_url: Annotated[
        str | None, typer.Option(help="Where the inbox is, if in another database.", metavar="URL")
    ] = None,
    inbox_schema: Annotated[
        str | None, typer.Option(help="The schema of the inbox's tables, if another.", metavar="NAME")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(help="Leave out what was published before: ISO 8601, UTC if not said.", metavar="WHEN"),
    ] = None,
    grace: Annotated[
        str, typer.Option(help="How long messages may be on their way.", metavar="TIME")
    ] = "60s",
    limit: Annotated[int, typer.Option(help="So many are named of each kind, at most.")] = 20,
    schema: Schema = None,
    json: Json = False,
) -> None:
    """Compare what was committed to a topic with what a consumer has taken; exit code 6 if something is
    missing. What has left is only known if relays keep a record of it: --keep-sent."""
    with engine_at(url, schema) as engine, _inbox_at(inbox_url, inbox_schema) as inbox_engine:
        found = outbox.audit(
            engine,
            topic,
            consumer,
            key=key.value,
            since=point("since", since),
            grace=length("grace", grace),
            limit=limit,
            inbox_engine=inbox_engine,
            schema=schema,
            inbox_schema=inbox_schema,
        )
    if json:
        as_json(asdict(found) | {"is_complete": found.is_complete})
    else:
        _print_audit(found)
    if not found.is_complete:
        raise typer.Exit(MISSING)


@contextmanager
def _inbox_at(url: str | None, schema: str | None) -> Iterator[Engine | None]:
    if url is None:
        yield None
    else:
        with engine_at(url, schema) as engine:
            yield engine


def _print_audit(found: Audit) -> None:
    counts = ("committed", "taken", "on_the_way", "delayed", "not_sent", "dead", "not_taken")
    values = asdict(found)
    grid([name.replace("_", " ") for name in counts], [[f"{values[name]:,}" for name in counts]])
    now = datetime.now(UTC)
    if found.missing:
        grid(
            ("missing", "key", "state", "since", "inbox status"),
            [
                (
                    each.id,
                    each.key or "-",
                    each.state,
                    f"{duration(now - each.since)} ago",
                    each.status or "-",
                )
                for each in found.missing
            ],
        )
    if found.sent_since is None:
        print(
            "No relay has kept a record of what it sent (--keep-sent): only what is in the outbox is known."
        )
    elif any(each.state == "sent" for each in found.missing) and found.taken_since is not None:
        when = found.taken_since.isoformat()
        print(f"The inbox's oldest row is of {when}: of what was sent earlier it may not know any more.")
