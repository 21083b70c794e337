"""`inbox-outbox outbox status`, `buckets`, `peek`: look at the outbox; and the number of its buckets."""

from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

import outbox
from inbox.errors import InvalidOption
from outbox import GenerationStatus, MessageState, OutboxStatus

from ._connect import Json, Schema, Url, engine_at
from ._exit import LATE, NOT_FOUND
from ._group import CommandGroup
from ._operating.deciding import By, OfError, OfKey, OfTopic, Why
from ._operating.messages import print_messages
from ._operating.topics import STATES_SAID, rows_of
from ._operating.units import duration
from ._place import place_of, print_place
from ._print import as_json, grid, printable
from ._times import length

app = CommandGroup(help="The outbox and its relays.")


@app.command()
def status(
    url: Url,
    exact: Annotated[
        bool, typer.Option("--exact", help="Count all messages, which reads the whole outbox.")
    ] = False,
    by_topic: Annotated[
        bool, typer.Option("--by-topic", help="By topic, with an error; reads no more than a part.")
    ] = False,
    max_age: Annotated[
        str | None,
        typer.Option(
            help="Exit code 7 if the oldest message is older than this, such as 60s.", metavar="TIME"
        ),
    ] = None,
    schema: Schema = None,
    json: Json = False,
) -> None:
    """Messages in each state, the age of the oldest, relays, and what is paused; "~" marks an estimate."""
    longest = length("max-age", max_age)
    with engine_at(url, schema) as engine:
        place = place_of(engine, schema)
        overview = outbox.overview(engine, schema=schema) if by_topic else None
        if exact:
            found = outbox.status(engine, count_up_to=None, schema=schema)
        else:
            found = outbox.status(engine, schema=schema)
    if json:
        topics = {} if overview is None else {"topics": [asdict(each) for each in overview.topics]}
        as_json({"database": asdict(place)} | asdict(found) | topics)
    else:
        print_place(place)
        _print_status(found)
        if overview is not None:
            grid(*rows_of(overview))
            if overview.has_more_topics:
                print("There are more topics: these need somebody, or have the oldest messages.")
    if longest is not None and (found.oldest_age or 0.0) > longest.total_seconds():
        raise typer.Exit(LATE)


def _print_status(found: OutboxStatus) -> None:
    counts = asdict(found)
    shown = {state: f"{'~' * (state in found.estimated)}{counts[state]:,}" for state in MessageState}
    age = "-" if found.oldest_age is None else duration(timedelta(seconds=found.oldest_age))
    grid(
        (*MessageState, "oldest", "buckets", "of no relay", "paused"),
        [(*shown.values(), age, str(found.buckets), str(found.unowned), ", ".join(found.paused) or "-")],
    )
    if found.waiting or found.unknown:
        print(STATES_SAID)
    if len(found.generations) > 1:
        _print_generations(found.generations)
    if found.stray:
        print(
            f"{found.stray:,} of them are in buckets that do not exist: relays take them in within seconds. "
            "A program that publishes them believes another number of buckets."
        )
    if found.relays:
        grid(
            ("relay", "epoch", "buckets", "lease", "sending"),
            [
                (
                    relay.name,
                    str(relay.epoch),
                    str(relay.buckets),
                    f"{relay.lease_left:.0f} s left" if relay.lease_left > 0 else "lost",
                    str(relay.sending),
                )
                for relay in found.relays
            ],
        )
    for each in (each for relay in found.relays if relay.lease_left > 0 for each in relay.rejected):
        print(
            f"The broker has rejected topic {each.topic!r} since {each.since:%Y-%m-%d %H:%M:%S} UTC; the "
            f"next try is at {each.until:%H:%M:%S}: {printable(each.reason)}"
        )
    for topic in dict.fromkeys(relay.crowded_by for relay in found.relays if relay.crowded_by is not None):
        print(
            f"Very many messages of {topic!r} cannot be sent. Once they fill a relay's memory, other topics "
            "and keys wait, too: retry or drop those for which others wait, or pause the topic."
        )


@app.command()
def buckets(
    url: Url,
    count: Annotated[
        int | None, typer.Option(help="Change the number of buckets for new messages.", metavar="NUMBER")
    ] = None,
    by: By = None,
    why: Why = None,
    schema: Schema = None,
    json: Json = False,
) -> None:
    """The buckets, which divide messages among relays, and the messages in old ones.

    With --count, first changes the number of buckets.
    """
    with engine_at(url, schema) as engine:
        if count is not None:
            outbox.set_bucket_count(engine, count, by=by, why=why, schema=schema)
        found = outbox.status(engine, schema=schema).generations
    if json:
        as_json(list(found))
    else:
        _print_generations(found)


def _print_generations(found: tuple[GenerationStatus, ...]) -> None:
    now = datetime.now(UTC)
    grid(
        ("generation", "buckets", "added", "messages"),
        [
            (
                str(each.number),
                str(each.buckets),
                "-" if each.added_at is None else f"{duration(now - each.added_at)} ago",
                "-" if each.messages is None else f"{each.messages:,}",
            )
            for each in found
        ],
    )


@app.command()
def peek(
    url: Url,
    limit: Annotated[int, typer.Option(help="The most messages to print.", metavar="NUMBER")] = 20,
    topic: OfTopic = None,
    key: OfKey = None,
    state: Annotated[
        MessageState | None,
        typer.Option(
            help=f"Only this state ({', '.join(MessageState)}); by default all that wait for a relay.",
            metavar="STATE",
        ),
    ] = None,
    dead: Annotated[bool, typer.Option("--dead", help="The same as --state dead.")] = False,
    error: OfError = None,
    errors_first: Annotated[
        bool | None,
        typer.Option(
            "--errors-first/--in-order",
            show_default=False,
            help="Whether failed and held messages come before all others; by default with --topic.",
        ),
    ] = None,
    schema: Schema = None,
    json: Json = False,
) -> None:
    """Messages, the next ones to leave first; with --topic, failed and held ones first. Changes nothing."""
    if dead and state not in (None, MessageState.DEAD):
        raise InvalidOption(f"--dead, --state={state.value!r}: expected one of the two")
    wanted = MessageState.DEAD if dead else state
    if errors_first and wanted is not None:
        raise InvalidOption(f"--errors-first, --state={wanted.value!r}: expected one of the two")
    with engine_at(url, schema) as engine:
        place = place_of(engine, schema)
        found = outbox.peek(
            engine,
            limit,
            topic=topic,
            key=key,
            state=wanted,
            error=error,
            errors_first=topic is not None and wanted is None if errors_first is None else errors_first,
            schema=schema,
        )
    if json:
        as_json(list(found))
    else:
        print_place(place)
        if found:
            print_messages(found)
        else:
            print(_none(wanted, is_filtered=any(each is not None for each in (topic, key, error))))


@app.command()
def trace(
    url: Url,
    message_id: Annotated[str | None, typer.Argument(metavar="ID", help="The message's id.")] = None,
    key: Annotated[str | None, typer.Option(help="In place of an id, a key.", metavar="TEXT")] = None,
    schema: Schema = None,
    json: Json = False,
) -> None:
    """Why a message waits, or the first 20 of a key.

    Exit code 3 if the outbox has none.
    """
    if (message_id is None) == (key is None):
        raise InvalidOption("expected the id of a message, or --key")
    with engine_at(url, schema) as engine:
        found = outbox.trace(engine, message_id=message_id, key=key, schema=schema)
    if json:
        as_json(found)
    elif found:
        grid(
            ("id", "topic", "state", "why"),
            [(each.message.id, each.message.topic, each.message.state, each.why) for each in found],
        )
    else:
        typer.echo("inbox-outbox: no such message waits: it has left, or was never published", err=True)
    if not found:
        raise typer.Exit(NOT_FOUND)


def _none(state: MessageState | None, *, is_filtered: bool) -> str:
    messages = "no such messages" if is_filtered else "no messages"
    if state is not None:
        return f"{messages} are {state}"
    return f"{messages} wait for a relay; for delayed and dead ones, add --state delayed or --dead"
