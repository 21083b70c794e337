"""`inbox-outbox outbox ...`: inspect the outbox, and act on its messages."""

from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer
from sqlalchemy import Engine

import outbox
from inbox.errors import InvalidOption
from outbox import BulkResult, GenerationStatus, MessageState, OutboxStatus, StoredMessage

from ._connect import Json, Schema, Url, engine_at
from ._exit import LATE
from ._group import CommandGroup
from ._operating.deciding import EXAMPLES, By, DryRun, OfError, Why, check_sure, say, say_bulk
from ._operating.topics import rows_of
from ._place import place_of, print_place
from ._print import as_json, duration, grid, size
from ._times import length

app = CommandGroup(help="The outbox and its relays.")

OfTopic = Annotated[str | None, typer.Option(help="Only this topic; any by default.", metavar="NAME")]
OfKey = Annotated[str | None, typer.Option(help="Only this key; any by default.", metavar="TEXT")]
Topic = Annotated[str, typer.Argument(help="A topic, not a pattern; all by default.")]
Id = Annotated[str | None, typer.Argument(metavar="[ID]", help="The message's id.")]
_ALL = "*"


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
            _print_messages(found)
        else:
            print(_none(wanted, is_filtered=any(each is not None for each in (topic, key, error))))


def _none(state: MessageState | None, *, is_filtered: bool) -> str:
    messages = "no such messages" if is_filtered else "no messages"
    if state is not None:
        return f"{messages} are {state}"
    return f"{messages} wait for a relay; for delayed and dead ones, add --state delayed or --dead"


def _print_messages(found: list[StoredMessage]) -> None:
    now = datetime.now(UTC)
    grid(
        ("id", "topic", "key", "state", "attempts", "size", "age", "error"),
        [
            (
                each.id,
                each.topic,
                each.key or "-",
                _state(each, now),
                str(each.attempts),
                size(each.payload_bytes) if each.content_type else "tombstone",
                duration(now - each.created_at),
                each.error or "-",
            )
            for each in found
        ],
    )


def _state(message: StoredMessage, now: datetime) -> str:
    """The state, with the time when it ends if known."""
    if message.retry_at is not None:
        return f"{message.state.value}, again in {duration(message.retry_at - now)}"
    if message.available_at is not None:
        return f"{message.state.value} for {duration(message.available_at - now)}"
    return message.state.value


def _switching(
    switch: Callable[..., bool], in_words: Callable[..., str], explained: str
) -> Callable[..., None]:
    """A command that pauses or resumes a topic."""

    def command(
        url: Url,
        topic: Topic = _ALL,
        by: By = None,
        why: Why = None,
        schema: Schema = None,
        json: Json = False,
    ) -> None:
        with engine_at(url, schema) as engine:
            changed = switch(engine, topic, by=by, why=why, schema=schema)
            paused = outbox.overview(engine, schema=schema).paused
        value = {"topic": topic, "changed": changed, "paused": list(paused)}
        say(json, value, in_words(topic, "" if changed else " before", paused))

    command.__doc__ = explained
    return command


def _paused(topic: str, before: str, _: tuple[str, ...]) -> str:
    return f"{'all topics' if topic == _ALL else topic}: paused{before}"


def _resumed(topic: str, before: str, paused: tuple[str, ...]) -> str:
    if topic != _ALL:
        still = f" by name{before}; still paused with all topics" if _ALL in paused else before
        return f"{topic}: not paused{still}"
    still = f" as a whole{before}; still paused by name: {', '.join(paused)}" if paused else before
    return f"all topics: not paused{still}"


app.command("pause")(
    _switching(outbox.pause, _paused, "Stop sending the messages of a topic; relays notice within a second.")
)
app.command("resume")(
    _switching(
        outbox.resume,
        _resumed,
        "Send the messages of a topic again. Without a topic, those paused by name stay paused. A topic "
        "waits as long as all are paused.",
    )
)


@app.command()
def retry(
    url: Url,
    message_id: Id = None,
    every: Annotated[
        MessageState | None,
        typer.Option("--all", help="All in this state: dead, held, waiting or unknown.", metavar="STATE"),
    ] = None,
    topic: OfTopic = None,
    key: OfKey = None,
    error: OfError = None,
    dry_run: DryRun = False,
    by: By = None,
    why: Why = None,
    schema: Schema = None,
    json: Json = False,
) -> None:
    """Send a dead, held, waiting or unknown message again; with --all, many of them."""
    if (message_id is None) == (every is None):
        raise InvalidOption("expected the id of a message, or --all")
    if message_id is not None and (topic is not None or key is not None):
        raise InvalidOption("--topic, --key: expected only with --all")
    if message_id is not None and (error is not None or dry_run):
        raise InvalidOption("--error, --dry-run: expected only with --all")
    with engine_at(url, schema) as engine:
        if message_id is not None:
            was = outbox.retry(engine, message_id, by=by, why=why, schema=schema)
            say(json, {"id": message_id, "was": was}, f"{message_id} was {was} and is sent again")
        elif every is not None:
            chosen = _Chosen(engine, every, topic, key, error, schema)
            done = chosen.decide(outbox.retry_all, by=by, why=why, dry_run=dry_run)
            chosen.say(json, done, "sent again", dry_run=dry_run)


@app.command()
def drop(
    url: Url,
    message_id: Id = None,
    every: Annotated[
        MessageState | None, typer.Option("--all", help="All in this state.", metavar="STATE")
    ] = None,
    dead_older_than: Annotated[
        str | None, typer.Option(help="All dead letters older than this, such as 30d.", metavar="TIME")
    ] = None,
    topic: OfTopic = None,
    key: OfKey = None,
    error: OfError = None,
    dry_run: DryRun = False,
    yes: Annotated[bool, typer.Option("--yes", help="Drop more than one message with --all.")] = False,
    by: By = None,
    why: Why = None,
    schema: Schema = None,
    json: Json = False,
) -> None:
    """Delete a message in any state, unless a relay is sending it; with --all, many of them; or delete old
    dead letters."""
    if [message_id, every, dead_older_than].count(None) != 2:
        raise InvalidOption("expected the id of a message, or --dead-older-than, or --all")
    if every is None and (key is not None or error is not None):
        raise InvalidOption("--key, --error: expected only with --all")
    if message_id is not None and topic is not None:
        raise InvalidOption("--topic: expected only with --dead-older-than or --all")
    with engine_at(url, schema) as engine:
        if message_id is not None:
            was = outbox.drop(engine, message_id, by=by, why=why, dry_run=dry_run, schema=schema)
            gone = "would be gone" if dry_run else "is gone"
            say(json, {"id": message_id, "was": was}, f"{message_id} was {was} and {gone}")
        elif dead_older_than is not None:
            age = length("dead-older-than", dead_older_than)
            count = outbox.purge_dead(
                engine, age, topic=topic, by=by, why=why, dry_run=dry_run, schema=schema
            )
            gone = "would be dropped" if dry_run else "dropped"
            say(json, {"messages": count}, f"{count:,} dead letters {gone}")
        elif every is not None:
            chosen = _Chosen(engine, every, topic, key, error, schema)
            if not (dry_run or yes):
                check_sure("drops", chosen.decide(outbox.drop_all, dry_run=True))
            done = chosen.decide(outbox.drop_all, by=by, why=why, dry_run=dry_run)
            chosen.say(json, done, "dropped", dry_run=dry_run)


class _Chosen:
    """The messages of a bulk decision."""

    def __init__(
        self,
        engine: Engine,
        state: MessageState,
        topic: str | None,
        key: str | None,
        error: str | None,
        schema: str | None,
    ) -> None:
        self._engine = engine
        self._state = state
        self._filter: dict[str, Any] = {"topic": topic, "key": key, "error": error, "schema": schema}

    def decide(self, decide: Callable[..., BulkResult], **options: Any) -> BulkResult:
        """Decide about them."""
        return decide(self._engine, self._state, **self._filter, **options)

    def say(self, json: bool, done: BulkResult, what: str, *, dry_run: bool) -> None:
        """Print the number; of a dry run, with some of them."""
        some = outbox.peek(self._engine, EXAMPLES, state=self._state, **self._filter) if dry_run else []
        say_bulk(json, done, self._state, what, [each.id for each in some], dry_run=dry_run)
        if some and not json:
            _print_messages(some)
