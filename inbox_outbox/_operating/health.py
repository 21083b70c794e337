"""`inbox-outbox health`: whether somebody has to look, as an exit code."""

from dataclasses import asdict, dataclass
from functools import partial
from typing import Annotated, Any

import typer
from sqlalchemy import Engine

from inbox_outbox._connect import Json, Schema
from inbox_outbox._exit import FAILED, UNSEEN
from inbox_outbox._operating.each_database import EachDatabase, Urls, engines_at
from inbox_outbox._place import place_of, print_place
from inbox_outbox._print import as_json, printable
from inbox_outbox._times import length
from inbox_outbox_base.errors import secrets
from inbox_outbox_base.words.overviews import DatabasePlace

from .looking import Half, look
from .problems import URGENCY, HealthLimits, Problem, problems


def health(
    url: Urls,
    max_age: Annotated[
        str, typer.Option(help="How long a message may wait to be sent.", metavar="TIME")
    ] = "5m",
    max_stopped: Annotated[
        int,
        typer.Option(
            help="How many messages may be dead, held, halted, refused as mismatches, or set aside.",
            metavar="NUMBER",
            min=0,
        ),
    ] = 0,
    max_no_relay: Annotated[str, typer.Option(help="How long there may be no relay.", metavar="TIME")] = "1m",
    max_overdue: Annotated[
        str, typer.Option(help="How far keys may be past their retention.", metavar="TIME")
    ] = "1d",
    min_ahead: Annotated[
        str, typer.Option(help="For how long there must be partitions, if any.", metavar="TIME")
    ] = "2d",
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
    too long; 11 messages are dead, held or halted, or were given up or refused as mismatches within a day,
    or rows of bulk writers were set aside; 12 no purge deletes keys that are past their retention, or
    partitions end soon; 13 one half could not be seen. Of several databases, 1: one does not answer; else
    the most urgent of all problems.
    """
    limits = HealthLimits(
        age=length("max-age", max_age),
        no_relay=length("max-no-relay", max_no_relay),
        stopped=max_stopped,
        overdue=length("max-overdue", max_overdue),
        ahead=length("min-ahead", min_ahead),
        rejected=length("max-rejected", max_rejected),
    )
    with engines_at(url, schema) as engines:
        ask = partial(_checked, schema=schema, only=only, limits=limits)
        if "" in engines:
            found = {"": ask(engines[""])}
        else:
            answers = EachDatabase(engines, ask).answers()
            found = {name: _answered(engines[name], answer) for name, answer in answers.items()}
    if json:
        said = {name: each.said() for name, each in found.items()}
        is_healthy = not any(each.problems for each in found.values())
        as_json(said.get("", {"is_healthy": is_healthy, "databases": said}))
    else:
        for name, each in found.items():
            each.print(name)
    codes = {problem.code for each in found.values() for problem in each.problems}
    if codes:
        raise typer.Exit(next(code for code in URGENCY if code in codes))


@dataclass(frozen=True, slots=True)
class _CheckedDatabase:
    """One database, and what needs somebody in it, the most urgent first."""

    place: DatabasePlace | str
    problems: list[Problem]

    def said(self) -> dict[str, Any]:
        """As JSON."""
        place = self.place if isinstance(self.place, str) else asdict(self.place)
        problems = [asdict(each) for each in self.problems]
        return {"database": place, "is_healthy": not self.problems, "problems": problems}

    def print(self, name: str) -> None:
        """For people."""
        print_place(self.place, f"database {name}" if name else "database")
        for each in self.problems:
            print(printable(each.text))
        if not self.problems:
            print("healthy")


def _checked(engine: Engine, schema: str | None, only: Half | None, limits: HealthLimits) -> _CheckedDatabase:
    place = place_of(engine, schema)
    halves = look(engine, schema, only)
    found = problems(halves.inbox, halves.outbox, limits)
    found += (Problem(UNSEEN, each) for each in halves.unseen)
    return _CheckedDatabase(place, found)


def _answered(engine: Engine, answer: _CheckedDatabase | str) -> _CheckedDatabase:
    if isinstance(answer, _CheckedDatabase):
        return answer
    return _CheckedDatabase(secrets.place(engine.url), [Problem(FAILED, f"it does not answer: {answer}")])
