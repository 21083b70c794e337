"""`inbox-outbox decisions`, and what all commands that decide have in common."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

import inbox
from inbox import BulkResult, Listing
from inbox.errors import InvalidOption
from inbox_outbox._connect import Json, Schema, Url, engine_at
from inbox_outbox._place import place_of, print_place
from inbox_outbox._print import as_json, grid
from inbox_outbox_base.words.counted import counted

_KEY = "The key as it is stored; a tuple is a JSON array."
Consumer = Annotated[str, typer.Argument(help="The consumer's name.", metavar="CONSUMER")]
Key = Annotated[str, typer.Argument(help=_KEY, metavar="KEY")]
OneConsumer = Annotated[str | None, typer.Argument(help="The consumer's name.", metavar="CONSUMER")]
OneKey = Annotated[str | None, typer.Argument(help=_KEY, metavar="KEY")]
By = Annotated[
    str | None,
    typer.Option(
        envvar="USER", show_envvar=False, help="Who decides; stored with the decision.", metavar="NAME"
    ),
]
Why = Annotated[str | None, typer.Option(help="The reason; stored with the decision.", metavar="TEXT")]
OfTopic = Annotated[str | None, typer.Option(help="Only this topic; any by default.", metavar="NAME")]
OfKey = Annotated[str | None, typer.Option("--key", help="Only this key; any by default.", metavar="TEXT")]
OfError = Annotated[
    str | None, typer.Option(help="Only those whose error contains this text.", metavar="TEXT")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only count; change nothing.")]

EXAMPLES = 5
"""How many messages a dry run prints."""


def decisions(
    url: Url,
    limit: Annotated[int, typer.Option(help="The most decisions to print.", metavar="NUMBER")] = 100,
    schema: Schema = None,
    json: Json = False,
) -> None:
    """What operators have decided about the inbox and the outbox, the newest first: who, what and why."""
    with engine_at(url, schema) as engine:
        place = place_of(engine, schema)
        found = inbox.decisions(engine, limit=limit, schema=schema)
    if json:
        as_json(list(found))
        return
    print_place(place)
    if not found:
        print("no decisions within the last year")
        return
    grid(
        ("at", "by", "decision", "about", "count", "why"),
        [
            (
                each.at.isoformat(timespec="seconds"),
                each.by,
                each.action,
                ", ".join(f"{name}={value}" for name, value in each.filter.items()),
                f"{each.count:,}",
                each.why or "-",
            )
            for each in found
        ],
    )


def sure(does: str, listed: Listing[Any], counted: BulkResult) -> str:
    """Ask for `--yes` before many messages are lost. Without it, a decision takes the `seen` of the one that
    was listed, and so none that comes after that.

    Raises:
        InvalidOption: there are several, or one that is not listed.
    """
    number = max(len(listed), counted.done + counted.changed)
    if number > 1 or number > len(listed):
        raise InvalidOption(f"--all: this {does} {number:,} messages; if that is what you want, add --yes")
    return listed.seen


def check_one_or_all(
    consumer: str | None,
    key: str | None,
    is_all: bool,
    filters: Mapping[str, Any],
    dry_run: bool,
    only_with_all: str,
) -> None:
    """A decision is about one key of a consumer, or, with --all, about those that the filters choose.

    Raises:
        InvalidOption: neither, or both.
    """
    is_one = consumer is not None and key is not None and not is_all
    if not is_one and (not is_all or consumer is not None):
        raise InvalidOption("expected a consumer and a key, or --all")
    if is_one and (dry_run or any(each is not None for each in filters.values())):
        raise InvalidOption(f"{only_with_all}: expected only with --all")


def say(json: bool, value: dict[str, Any], text: str) -> None:
    """Print one or the other."""
    if json:
        as_json(value)
    else:
        print(text)


def say_bulk(
    json: bool,
    done: BulkResult,
    state: str,
    what: str,
    examples: Sequence[str],
    *,
    dry_run: bool,
    others: str = "had changed meanwhile",
) -> None:
    """Print what a bulk decision did with messages in a state, or would do; `others` says why some are
    left."""
    value: dict[str, Any] = {"messages": done.done} | ({"examples": [*examples]} if dry_run else {})
    is_, was = ("is", "was") if done.done == 1 else ("are", "were")
    verbs = f"{is_} {state} and would be" if dry_run else f"{was} {state} and {is_}"
    text = f"{counted(done.done, 'message')} {verbs} {what}"
    if done.changed:
        value["changed"] = done.changed
        text += (
            f"; {counted(done.changed, 'other')} {others}, and {'is' if done.changed == 1 else 'are'} left"
        )
    if done.left:
        value["left"] = done.left
        text += f"; {done.left:,} cannot be delivered, and are left: the log names them"
    say(json, value, text)
