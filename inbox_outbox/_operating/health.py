"""`inbox-outbox health`: whether somebody has to look, as an exit code."""

from dataclasses import asdict
from typing import Annotated

import typer

from inbox_outbox._connect import Json, Schema, Url, engine_at
from inbox_outbox._exit import UNSEEN
from inbox_outbox._place import place_of, print_place
from inbox_outbox._print import as_json, printable
from inbox_outbox._times import length

from .looking import Half, look
from .problems import HealthLimits, Problem, problems


def health(
    url: Url,
    max_age: Annotated[
        str, typer.Option(help="How long a message may wait to be sent.", metavar="TIME")
    ] = "5m",
    max_stopped: Annotated[
        int,
        typer.Option(
            help="How many messages may be dead, held, halted, or refused as mismatches.",
            metavar="NUMBER",
            min=0,
        ),
    ] = 0,
    max_no_relay: Annotated[str, typer.Option(help="How long there may be no relay.", metavar="TIME")] = "1m",
    max_overdue: Annotated[
        str, typer.Option(help="How far keys may be past their retention.", metavar="TIME")
    ] = "1d",
    max_rejected: Annotated[
        str, typer.Option(help="How long the broker may reject a topic.", metavar="TIME")
    ] = "5m",
    only: Annotated[
        Half | None, typer.Option(help="Look at this half alone, with the rights to no other.")
    ] = None,
    schema: Schema = None,
    json: Json = False,
) -> None:
    """Say whether somebody has to look at the inbox or the outbox.

    Exit code 0: no. Else that of the most urgent problem: 10 no relay is running; 14 the broker rejects a
    topic, or messages that cannot be sent keep relays from reading on; 7 a message has waited for
    too long; 11 messages are dead, held or halted, or were given up or refused as mismatches within a day;
    12 no purge deletes keys that are past their retention; 13 one half could not be seen.
    """
    limits = HealthLimits(
        age=length("max-age", max_age),
        no_relay=length("max-no-relay", max_no_relay),
        stopped=max_stopped,
        overdue=length("max-overdue", max_overdue),
        rejected=length("max-rejected", max_rejected),
    )
    with engine_at(url, schema) as engine:
        place = place_of(engine, schema)
        halves = look(engine, schema, only)
    found = problems(halves.inbox, halves.outbox, limits)
    found += (Problem(UNSEEN, each) for each in halves.unseen)
    if json:
        said = [asdict(each) for each in found]
        as_json({"database": asdict(place), "is_healthy": not found, "problems": said})
    else:
        print_place(place)
        for each in found:
            print(printable(each.text))
        if not found:
            print("healthy")
    if found:
        raise typer.Exit(found[0].code)
