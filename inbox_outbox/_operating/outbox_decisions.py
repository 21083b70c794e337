"""`inbox-outbox outbox pause`, `resume`, `retry`, `drop`: decide about topics and messages of the outbox."""

from collections.abc import Callable
from typing import Annotated, Any

import typer
from sqlalchemy import Engine

import outbox
from inbox.errors import InvalidOption
from inbox_outbox._connect import Json, Schema, Url, engine_at
from inbox_outbox._times import length
from inbox_outbox_base.databases import relaying_statements
from inbox_outbox_base.words.counted import counted
from outbox import BulkResult, Listing, MessageState, StoredMessage
from outbox.schema import tables

from .deciding import EXAMPLES, By, DryRun, OfError, OfKey, OfTopic, Why, say, say_bulk, sure
from .messages import print_messages

Topic = Annotated[str, typer.Argument(help="A topic, not a pattern; all by default.", metavar="TOPIC")]
Id = Annotated[str | None, typer.Argument(metavar="ID", help="The message's id.")]
_ALL = "*"


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
            # Not from a status or an overview, which reads much more: there may be an incident.
            with engine.connect() as connection:
                paused = sorted(connection.execute(relaying_statements.paused(tables(schema))).scalars())
        value = {"topic": topic, "changed": changed, "paused": paused}
        say(json, value, in_words(topic, "" if changed else " before", paused))

    command.__doc__ = explained
    return command


def _paused(topic: str, before: str, _: list[str]) -> str:
    return f"{'all topics' if topic == _ALL else topic}: paused{before}"


def _resumed(topic: str, before: str, paused: list[str]) -> str:
    if topic != _ALL:
        still = f" by name{before}; still paused with all topics" if _ALL in paused else before
        return f"{topic}: not paused{still}"
    still = f" as a whole{before}; still paused by name: {', '.join(paused)}" if paused else before
    return f"all topics: not paused{still}"


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
            say(json, {"messages": count}, f"{counted(count, 'dead letter')} {gone}")
        elif every is not None:
            chosen = _Chosen(engine, every, topic, key, error, schema)
            seen = None if dry_run or yes else chosen.sure("drops", outbox.drop_all)
            done = chosen.decide(outbox.drop_all, seen=seen, by=by, why=why, dry_run=dry_run)
            others = "had changed meanwhile, or may just have been sent"
            chosen.say(json, done, "dropped", dry_run=dry_run, others=others)


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

    def sure(self, does: str, decide: Callable[..., BulkResult]) -> str:
        """The `seen` of one message, if there is no other one."""
        return sure(does, self._listed(2), self.decide(decide, dry_run=True))

    def _listed(self, limit: int) -> Listing[StoredMessage]:
        return outbox.peek(self._engine, limit, state=self._state, **self._filter)

    def say(self, json: bool, done: BulkResult, what: str, *, dry_run: bool, **words: str) -> None:
        """Print the number; of a dry run, with some of them."""
        some = self._listed(EXAMPLES) if dry_run else []
        say_bulk(json, done, self._state, what, [each.id for each in some], dry_run=dry_run, **words)
        if some and not json:
            print_messages(some)


COMMANDS: dict[str, Callable[..., None]] = {
    "pause": _switching(
        outbox.pause, _paused, "Stop sending the messages of a topic; relays notice within a second."
    ),
    "resume": _switching(
        outbox.resume,
        _resumed,
        "Send the messages of a topic again. Without a topic, those paused by name stay paused. A topic "
        "waits as long as all are paused.",
    ),
    "retry": retry,
    "drop": drop,
}
