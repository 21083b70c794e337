"""`inbox-outbox inbox list`, `retry`, `discard`, `release`, `resolve-step`: act on messages of status-table
mode."""

import json as jsons
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from inspect import signature
from typing import Annotated, Any

import typer

import inbox
from inbox import BulkResult, Record, SqlStore, Status, Store
from inbox.errors import InvalidOption, TablesMissing
from inbox.schema import tables
from inbox_outbox_base.checks.missing import is_there

from ._connect import Json, Prefix, Schema, StoreUrl, store_at
from ._operating.deciding import (
    EXAMPLES,
    By,
    Consumer,
    DryRun,
    Key,
    OfError,
    OfKey,
    OneConsumer,
    OneKey,
    Why,
    check_one_or_all,
    say_bulk,
    sure,
)
from ._place import place_of_store, print_place
from ._print import as_json
from ._records import as_object, print_list


class Resolved(StrEnum):
    """The operator's answer about a step with an unknown outcome."""

    DONE = "done"
    NOT_DONE = "not_done"


OfConsumer = Annotated[
    str | None,
    typer.Option("--consumer", help="Only this consumer's messages; all by default.", metavar="NAME"),
]


def list_messages(
    url: StoreUrl,
    status: Annotated[
        Status | None,
        typer.Option(help=f"Only this status ({', '.join(Status)}); any by default.", metavar="STATUS"),
    ] = None,
    consumer: OfConsumer = None,
    key: OfKey = None,
    error: OfError = None,
    limit: Annotated[int, typer.Option(help="The most messages to print.", metavar="NUMBER")] = 100,
    schema: Schema = None,
    prefix: Prefix = "inbox",
    json: Json = False,
) -> None:
    """Messages of status-table mode, the least recently changed first."""
    with store_at(url, schema, prefix) as store:
        place = place_of_store(store, url, schema, prefix)
        filters: dict[str, Any] = {"consumer": consumer, "status": status, "key": key, "error": error}
        found: list[Record] = []
        try:
            found = inbox.list_messages(store, limit=limit, **filters)
        except TablesMissing:
            if not (isinstance(store, SqlStore) and is_there(store.engine, tables(schema).message)):
                raise  # else an application with the exactly-once path alone
    if json:
        as_json([as_object(record) for record in found])
    else:
        print_place(place)
        if found:
            print_list(found)
        else:
            is_filtered = any(each is not None for each in filters.values())
            print(_none(is_filtered=is_filtered, has_tables=isinstance(store, SqlStore)))


def _none(*, is_filtered: bool, has_tables: bool) -> str:
    text = f"no {'such ' if is_filtered else ''}messages of status-table mode"
    if has_tables:
        text += "; `inbox-outbox inbox status` counts those of the exactly-once path"
    return text


def _deciding(
    decide: Callable[..., None], bulk: "_Bulk", explained: str, *, delivers: bool = False
) -> Callable[..., None]:
    """A command that acts on one message, and prints its new state; or on many. If it `delivers`, it has
    options for that."""

    def command(
        url: StoreUrl,
        consumer: OneConsumer = None,
        key: OneKey = None,
        every: Annotated[
            Status | None,
            typer.Option("--all", help=f"All in this status: {' or '.join(bulk.among)}.", metavar="STATUS"),
        ] = None,
        of_consumer: OfConsumer = None,
        of_key: OfKey = None,
        error: OfError = None,
        deliver: Annotated[
            bool,
            typer.Option(
                "--deliver",
                help="Also publish it again, through the outbox of this database; needs keep_payload=True.",
            ),
        ] = False,
        to: Annotated[
            str | None,
            typer.Option(
                help="With --deliver: the topic; by default the one from which it came.", metavar="TOPIC"
            ),
        ] = None,
        dry_run: DryRun = False,
        yes: Annotated[bool, typer.Option("--yes", help="Discard or release more than one message.")] = False,
        by: By = None,
        why: Why = None,
        schema: Schema = None,
        prefix: Prefix = "inbox",
        json: Json = False,
    ) -> None:
        filters: dict[str, Any] = {"consumer": of_consumer, "key": of_key, "error": error}
        names = "--consumer, --key, --error, --dry-run"
        check_one_or_all(consumer, key, every is not None, filters, dry_run, names)
        options: dict[str, Any] = {"by": by, "why": why}
        if delivers:
            options |= {"deliver": deliver, "to": to}
        with store_at(url, schema, prefix) as store:
            if consumer is not None and key is not None:
                decide(store, consumer, key, **options)
                _print_changed(store, consumer, key, json)
            elif every is not None:
                bulk.run(store, every, filters, yes, json, dry_run=dry_run, **options)

    command.__doc__ = explained
    if not delivers:
        _hide(command, "deliver", "to")
    return command


def _hide(command: Callable[..., None], *names: str) -> None:
    """Leave out options of a command."""
    taken = signature(command)
    kept = [each for name, each in taken.parameters.items() if name not in names]
    command.__signature__ = taken.replace(parameters=kept)  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True)
class _Bulk:
    """A decision about many messages.

    Attributes:
        decide: the function; it takes a store, a status, and options.
        among: the statuses that it takes.
        what: what becomes of them, for the result.
        needs_yes: how an error names what it does, if that cannot be taken back.
    """

    decide: Callable[..., BulkResult]
    among: tuple[Status, ...]
    what: str
    needs_yes: str | None = None

    def run(
        self, store: Store, status: Status, filters: dict[str, Any], yes: bool, json: bool, **options: Any
    ) -> None:
        """Decide, and print what was done."""
        if status not in self.among:
            raise InvalidOption(f"--all={status.value!r}: expected {' or '.join(self.among)}")
        dry_run = options["dry_run"]
        if self.needs_yes and not (yes or dry_run):
            listed = inbox.list_messages(store, status=status, limit=2, **filters)
            counted = self.decide(store, status, **filters, dry_run=True)
            options["seen"] = sure(self.needs_yes, listed, counted)
        done = self.decide(store, status, **filters, **options)
        some = inbox.list_messages(store, status=status, limit=EXAMPLES, **filters) if dry_run else []
        say_bulk(json, done, status, self.what, [each.key for each in some], dry_run=dry_run)
        if some and not json:
            print_list(some)


def _release_all(store: Store, status: Status, **options: Any) -> BulkResult:
    return inbox.release_all(store, **options)


def resolve_step(
    url: StoreUrl,
    consumer: Consumer,
    key: Key,
    step: Annotated[str, typer.Argument(help="The step for which the message is halted.", metavar="STEP")],
    outcome: Annotated[
        Resolved, typer.Argument(help=f"Its outcome: {' or '.join(Resolved)}.", metavar="OUTCOME")
    ],
    result: Annotated[
        str | None, typer.Option(help="The result of a step that is done.", metavar="JSON")
    ] = None,
    by: By = None,
    why: Why = None,
    schema: Schema = None,
    prefix: Prefix = "inbox",
    json: Json = False,
) -> None:
    """Record the outcome of the step for which a message is halted; its next delivery goes on from there."""
    value = None if result is None else _parsed(result)
    with store_at(url, schema, prefix) as store:
        inbox.resolve_step(store, consumer, key, step, outcome.value, result=value, by=by, why=why)
        _print_changed(store, consumer, key, json)


COMMANDS: dict[str, Callable[..., None]] = {
    "list": list_messages,
    "retry": _deciding(
        inbox.retry,
        _Bulk(inbox.retry_all, (Status.DEAD, Status.FAILED), "retried"),
        "Let a dead or failed message run at its next delivery; its attempts are counted from zero. With "
        "--deliver, publish it again. With --all, many of them.",
        delivers=True,
    ),
    "discard": _deciding(
        inbox.discard,
        _Bulk(inbox.discard_all, (Status.DEAD, Status.HALTED, Status.FAILED), "discarded", "discards"),
        "Never run a dead, halted or failed message: every later delivery of it is a duplicate. With --all, "
        "many of them.",
    ),
    "release": _deciding(
        inbox.release,
        _Bulk(_release_all, (Status.CONSUMING,), "released", "releases"),
        "Take a message away from its handler, whose later writes are rejected. With --all, many of them.",
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
