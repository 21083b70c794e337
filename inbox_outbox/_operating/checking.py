"""`inbox-outbox check`: try the contract on the real tables."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from typing import Annotated

import typer

import inbox
import outbox
from inbox import CheckReport
from inbox.errors import TablesMissing

from .._connect import Json, Schema, Url, engine_at
from .._exit import UNSAFE
from .._place import place_of, print_place
from .._print import as_json, grid


def check(
    url: Url,
    consumer: Annotated[
        str | None,
        typer.Option(
            help="One of your consumers, if the tables take no rows of others (policies, partitions).",
            metavar="NAME",
        ),
    ] = None,
    schema: Schema = None,
    json: Json = False,
) -> None:
    """Try the inbox's and the outbox's contract on the real tables, in transactions that are rolled back.

    Exit code 9 if a promise cannot be kept.
    """
    with engine_at(url, schema) as engine:
        place = place_of(engine, schema)
        halves: dict[str, Callable[[], CheckReport]] = {
            "inbox": lambda: inbox.check(engine, schema=schema, consumer=consumer),
            "outbox": lambda: outbox.check(engine, schema=schema),
        }
        reports: dict[str, CheckReport] = {}
        for half, of_half in halves.items():
            with suppress(TablesMissing):  # a database may have only one half
                reports[half] = of_half()
        if not reports:
            halves["inbox"]()  # raises it
    is_safe = all(each.is_safe for each in reports.values())
    if json:
        findings = {half: [asdict(each) for each in report.findings] for half, report in reports.items()}
        as_json({"database": asdict(place), "is_safe": is_safe, **findings})
    else:
        print_place(place)
        rows = [
            (half, each.what, each.result, each.why)
            for half, report in reports.items()
            for each in report.findings
        ]
        grid(("of", "what", "result", "why"), rows)
    if not is_safe:
        raise typer.Exit(UNSAFE)
