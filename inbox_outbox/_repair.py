"""`inbox-outbox inbox list`, `retry`, `discard`, `release`, `resolve-step`: act on messages of status-table
mode."""

import json as jsons
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any

import typer

import inbox
from inbox import SqlStore, Status, Store
from inbox.errors import InvalidOption

from ._connect import Json, Prefix, Schema, StoreUrl, store_at
from ._place import place_of_store, print_place
from ._print import as_json
from ._records import as_object, print_list


class Resolved(StrEnum):
    """The operator's answer about a step with an unknown outcome."""

    DONE = "done"
    NOT_DONE = "not_done"


Consumer = Annotated[str, typer.Argument(help="The consumer's name.")]
Key = Annotated[str, typer.Argument(help="The key as it is stored; a tuple is a JSON array.")]
By = Annotated[
    str | None,
    typer.Option(
        envvar="USER", show_envvar=False, help="Who decides; stored in the message's history.", metavar="NAME"
    ),
]


def list_messages(
    url: StoreUrl,
    status: Annotated[
        Status | None,
        typer.Option(help=f"Only this status ({', '.join(Status)}); any by default.", metavar="STATUS"),
    ] = None,
    consumer: Annotated[
        str | None, typer.Option(help="Only this consumer's messages; all by default.", metavar="NAME")
    ] = None,
    limit: Annotated[int, typer.Option(help="The most messages to print.", metavar="NUMBER")] = 100,
    schema: Schema = None,
    prefix: Prefix = "inbox",
    json: Json = False,
) -> None:
    """Messages of status-table mode, the least recently changed first."""
    with store_at(url, schema, prefix) as store:
        place = place_of_store(store, url, schema, prefix)
        found = inbox.list_messages(store, consumer=consumer, status=status, limit=limit)
    if json:
        as_json([as_object(record) for record in found])
    else:
        print_place(place)
        if found:
            print_list(found)
        else:
            print(_none(is_filtered=bool(status or consumer), has_tables=isinstance(store, SqlStore)))


def _none(*, is_filtered: bool, has_tables: bool) -> str:
    text = f"no {'such ' if is_filtered else ''}messages of status-table mode"
    if has_tables:
        text += "; `inbox-outbox inbox status` counts those of the exactly-once path"
    return text


def _deciding(decide: Callable[..., None], explained: str) -> Callable[..., None]:
    """A command that acts on one message, and prints its new state."""

    def command(
        url: StoreUrl,
        consumer: Consumer,
        key: Key,
        by: By = None,
        schema: Schema = None,
        prefix: Prefix = "inbox",
        json: Json = False,
    ) -> None:
        with store_at(url, schema, prefix) as store:
            decide(store, consumer, key, by=by)
            _print_changed(store, consumer, key, json)

    command.__doc__ = explained
    return command


def resolve_step(
    url: StoreUrl,
    consumer: Consumer,
    key: Key,
    step: Annotated[str, typer.Argument(help="The step for which the message is halted.")],
    outcome: Annotated[Resolved, typer.Argument(help="Its outcome.")],
    result: Annotated[
        str | None, typer.Option(help="The result of a step that is done.", metavar="JSON")
    ] = None,
    by: By = None,
    schema: Schema = None,
    prefix: Prefix = "inbox",
    json: Json = False,
) -> None:
    """Record the outcome of the step for which a message is halted; its next delivery goes on from there."""
    value = None if result is None else _parsed(result)
    with store_at(url, schema, prefix) as store:
        inbox.resolve_step(store, consumer, key, step, outcome.value, result=value, by=by)
        _print_changed(store, consumer, key, json)


COMMANDS: dict[str, Callable[..., None]] = {
    "list": list_messages,
    "retry": _deciding(
        inbox.retry,
        "Let a dead or failed message run at its next delivery; its attempts are counted from zero.",
    ),
    "discard": _deciding(
        inbox.discard,
        "Never run a dead, halted or failed message: every later delivery of it is a duplicate.",
    ),
    "release": _deciding(
        inbox.release,
        "Take a message away from its handler, whose later writes are rejected.",
    ),
    "resolve-step": resolve_step,
}


def _print_changed(store: Store, consumer: str, key: str, json: bool) -> None:
    """Print the message as it is now; it may already be running."""
    record = inbox.show_message(store, consumer, key)
    if record is None:  # Redis has just lost it
        return
    if json:
        as_json(as_object(record))
    else:
        print_list([record])


def _parsed(text: str) -> Any:
    try:
        return jsons.loads(text)
    except ValueError as error:
        raise InvalidOption(f"--result={text!r}: expected JSON: {error}") from None
