"""`inbox-outbox inbox refused` and `dismiss`: refused messages, and those that somebody has looked at."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

import inbox
from inbox import BulkResult, RefusedMessage
from inbox_outbox._connect import Json, Schema, Url, engine_at
from inbox_outbox._place import place_of, print_place
from inbox_outbox._print import as_json, grid

from .deciding import By, DryRun, OneConsumer, OneKey, Why, check_one_or_all, say_bulk
from .units import duration


def refused(
    url: Url,
    consumer: Annotated[str | None, typer.Option(help="Only this consumer's.", metavar="NAME")] = None,
    limit: Annotated[int, typer.Option(help="The most to list.", metavar="NUMBER")] = 100,
    schema: Schema = None,
    json: Json = False,
) -> None:
    """Messages that were refused: with another payload, too old, given up by a listener; rejected rows."""
    with engine_at(url, schema) as engine:
        place = place_of(engine, schema)
        found = inbox.refused(engine, consumer=consumer, limit=limit, schema=schema)
    if json:
        as_json(found)
        return
    print_place(place)
    if not found:
        print("nothing was refused")
        return
    grid(
        ("consumer", "key", "kind", "times", "first", "last", "came from", "digest", "stored", "error"),
        [_refusal(each) for each in found],
    )


def _refusal(found: RefusedMessage) -> list[str]:
    now = datetime.now(UTC)
    seen = (f"{duration(now - each)} ago" for each in (found.first_seen, found.last_seen))
    source = ", ".join(each for each in (found.topic, found.message_id, found.place) if each)
    return [
        found.consumer,
        "(no key)" if found.key is None else found.key,
        f"{found.kind}, taken since" if found.taken_since else found.kind,
        f"{found.times:,}",
        *seen,
        *(each or "-" for each in (source, found.digest, found.stored_digest, found.error)),
    ]


def dismiss(
    url: Url,
    consumer: OneConsumer = None,
    key: OneKey = None,
    every: Annotated[bool, typer.Option("--all", help="All refused messages that are there now.")] = False,
    of_consumer: Annotated[
        str | None, typer.Option("--consumer", help="With --all: only this consumer's.", metavar="NAME")
    ] = None,
    kind: Annotated[
        str | None, typer.Option(help="With --all: only mismatch, too_old, dead or rejected.", metavar="KIND")
    ] = None,
    dry_run: DryRun = False,
    by: By = None,
    why: Why = None,
    schema: Schema = None,
    json: Json = False,
) -> None:
    """Somebody has looked at a refused message: list and count it no more, until it is refused again.

    With --all, many of them.
    """
    filters: dict[str, Any] = {"consumer": of_consumer, "kind": kind}
    check_one_or_all(consumer, key, every, filters, dry_run, "--consumer, --kind, --dry-run")
    with engine_at(url, schema) as engine:
        if consumer is not None and key is not None:
            inbox.dismiss(engine, consumer, key, by=by, why=why, schema=schema)
            done = BulkResult(1)
        else:
            done = inbox.dismiss_all(engine, **filters, by=by, why=why, dry_run=dry_run, schema=schema)
    say_bulk(json, done, "refused", "dismissed", [], dry_run=dry_run)


COMMANDS: dict[str, Callable[..., None]] = {"refused": refused, "dismiss": dismiss}
