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

from .._connect import Json, Schema, Url, engine_at
from .._exit import MISSING, UNRECORDED
from .._place import place_of, print_place
from .._print import as_json, grid
from .._times import length, point
from .units import duration


class TakenBy(StrEnum):
    """The consumer's key: a message's key or its id."""

    KEY = "key"
    ID = "id"


def audit(
    url: Url,
    topic: Annotated[str, typer.Option(help="The topic of the messages.", metavar="NAME")],
    consumer: Annotated[str, typer.Option(help="The consumer's name.", metavar="NAME")],
    key: Annotated[
        TakenBy, typer.Option(help="How the consumer identifies messages: key or id.", metavar="WHAT")
    ] = TakenBy.KEY,
    inbox_url: Annotated[
        str | None, typer.Option(help="The inbox's database, if it is another one.", metavar="URL")
    ] = None,
    inbox_schema: Annotated[
        str | None,
        typer.Option(help="The schema of the inbox's tables, if it is another one.", metavar="NAME"),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(help="Ignore messages published before this: ISO 8601, UTC by default.", metavar="WHEN"),
    ] = None,
    grace: Annotated[
        str, typer.Option(help="How long messages can be on their way.", metavar="TIME")
    ] = "60s",
    limit: Annotated[
        int, typer.Option(help="The most messages to name of each kind.", metavar="NUMBER")
    ] = 20,
    schema: Schema = None,
    json: Json = False,
) -> None:
    """Compare the messages committed to a topic with those a consumer has taken.

    Exit code 6 if some are missing, 8 if some may be: sent messages are known only if relays keep records of
    them (--keep-sent).
    """
    with engine_at(url, schema) as engine, _inbox_at(inbox_url, inbox_schema) as inbox_engine:
        place = place_of(engine, schema)
        inbox_place = place_of(inbox_engine or engine, inbox_schema or (None if inbox_engine else schema))
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
        places = {"database": asdict(place), "inbox_database": asdict(inbox_place)}
        as_json(places | asdict(found) | {"is_complete": found.is_complete})
    else:
        print_place(place)
        if inbox_place != place:
            print_place(inbox_place, "inbox")
        _print_audit(found)
    if not found.is_complete:
        raise typer.Exit(MISSING if found.is_missing_some else UNRECORDED)


@contextmanager
def _inbox_at(url: str | None, schema: str | None) -> Iterator[Engine | None]:
    if url is None:
        yield None
    else:
        with engine_at(url, schema, "inbox-url") as engine:
            yield engine


def _print_audit(found: Audit) -> None:
    counts = ("committed", "taken", "on_the_way", "delayed", "not_sent", "dead", "not_taken")
    values = asdict(found)
    grid([name.replace("_", " ") for name in counts], [[f"{values[name]:,}" for name in counts]])
    if not found.committed:
        print(f"No committed message of topic {found.topic!r} was found.")
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
    if found.unrecorded_until is not None:
        print(
            f"Until {found.unrecorded_until.isoformat()}, messages may have left without a record: sent by a "
            "relay without --keep-sent, dropped, or purged. They are not counted."
        )
    if any(each.state == "sent" for each in found.missing) and found.taken_since is not None:
        when = found.taken_since.isoformat()
        print(f"The inbox's oldest row is from {when}: it may have forgotten messages sent earlier.")
