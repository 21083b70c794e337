"""`inbox-outbox partitions`."""

from datetime import datetime
from typing import Annotated

import typer

import inbox
from inbox import Partition
from inbox_outbox._connect import Json, Schema, Url, engine_at
from inbox_outbox._exit import UNFINISHED
from inbox_outbox._place import place_of, print_place
from inbox_outbox._print import as_json, grid
from inbox_outbox._running.log import telling
from inbox_outbox._times import length

from .deciding import OneConsumer

_TO_DO = {"made": "to make", "dropped": "to drop"}
"""What a dry run says of the states."""


def partitions(
    url: Url,
    consumer: OneConsumer = None,
    ahead: Annotated[
        str, typer.Option(help="For how long from now on there must be partitions.", metavar="TIME")
    ] = "7d",
    show: Annotated[
        bool, typer.Option("--list", help="Only show the partitions that there are; change nothing.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would be made and dropped; change nothing.")
    ] = False,
    schema: Schema = None,
    json: Json = False,
) -> None:
    """Make a partition for each day to come of consumers whose keys name their time, and drop the days whose
    keys were forgotten. PostgreSQL only.

    Run it once a day, as the owner of the tables. With CONSUMER it gives this consumer its first partitions;
    without, it goes on with all that have some. Exit code 4: an older transaction was open, so a day is not
    dropped yet; the next run goes on.
    """
    with engine_at(url, schema) as engine, telling("inbox.partitions"):
        place = place_of(engine, schema)
        found = inbox.partitions(
            engine, consumer, ahead=length("ahead", ahead), dry_run=dry_run or show, schema=schema
        )
    if show or dry_run:
        shown = [each for each in found if (each.state != "made" if show else each.state in _TO_DO)]
    else:
        shown = found
    if json:
        as_json(shown)
    else:
        print_place(place)
        _print(shown, has_some=bool(shown if show else found), is_dry=show or dry_run)
    if not (show or dry_run) and any(each.state == "pending" for each in found):
        raise typer.Exit(UNFINISHED)


def _print(found: list[Partition], *, has_some: bool, is_dry: bool) -> None:
    if not has_some:
        print("no partitions; `inbox-outbox partitions CONSUMER` begins with a consumer")
        return
    if not found:
        print("nothing to make or to drop")
        return
    grid(
        ("consumer", "partition", "from", "to", "rows", "state"),
        [
            (
                each.consumer,
                each.name or "-",
                "-" if each.begin is None else _day(each.begin),
                _day(each.end),
                "-" if each.rows is None else f"~{each.rows:,}",
                _TO_DO.get(each.state, each.state) if is_dry else each.state,
            )
            for each in found
        ],
    )


def _day(when: datetime) -> str:
    return f"{when:%Y-%m-%d}"
