"""The two halves of an audit: messages still in the outbox, and messages sent."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any

from sqlalchemy import Connection, Engine, Executable, Row, Table

from outbox._publishing.safety import every
from outbox.schema import OutboxTables

from . import audit_statements as statements
from .transact import transact

_PAGE = 1_000


@dataclass(frozen=True, slots=True)
class Missing:
    """A message that was committed and not taken."""

    id: str
    key: str | None
    state: str
    """pending, waiting, unknown or held, or delayed and overdue: not sent yet; dead: given up; sent: there is
    no record that it was taken."""
    since: datetime
    """When it was published, died or was sent; for a delayed message that was never sent, when it was due."""
    status: str | None
    """In status-table mode, its status in the consumer's inbox, if it was sent or may have been."""


@dataclass(frozen=True, slots=True)
class Question:
    """The audit's parameters, and the tables to look in."""

    outbox: OutboxTables
    taken: list[Table]
    """The tables that say what was taken: those of the modes that the application uses."""
    key: str
    given: dict[str, Any]
    """The parameters of the statements."""
    inbox: statements.TakenRows
    """The same for the statements, with an empty one for one that was not made."""

    @property
    def both(self) -> list[Table]:
        """The outbox, and the tables that say what was taken."""
        return [*every(self.outbox), *self.taken]


@dataclass(slots=True)
class UnsentAudit:
    """Messages still in the outbox."""

    late: int
    recent: int
    dead: int
    delayed: int
    taken: int
    """Messages that were taken although their sends had no answer."""
    missing: list[Missing] = field(default_factory=list)


@dataclass(slots=True)
class Sent:
    """Messages sent."""

    messages: int = 0
    untaken: int = 0
    late: int = 0
    """Untaken messages that should have been taken by now."""
    oldest: datetime | None = None
    missing: list[Missing] = field(default_factory=list)


def unsent(connection: Connection, question: Question) -> UnsentAudit:
    """Audit the messages still in the outbox, where the database can compare them with the inbox."""
    places = question.outbox, question.inbox, question.key
    found = _counted(connection, statements.count_unsent(*places), question)
    missing = _named(connection, statements.unsent(*places), question.given)
    found.missing = _some(missing, question.given["limit_"])
    return found


def unsent_apart(engine: Engine, inbox_engine: Engine, question: Question) -> UnsentAudit:
    """The same for an inbox elsewhere: messages sent without an answer are looked up page by page."""
    tables, key = question.outbox, question.key
    count, name = statements.count_unsent(tables, None, key), statements.unsent(tables, None, key)
    found = transact(engine, tables, lambda each: _counted(each, count, question))
    missing: list[Missing] = []
    for statement in (statements.asked_page(tables, key), statements.dead_page(tables, key)):
        named = 0
        for row, status in _asked(engine, inbox_engine, question, statement):
            if status == "consumed":
                _take(found, row)
            elif row.late and named < question.given["limit_"]:
                missing.append(Missing(row.id, row.key, row.state, row.since, status))
                named += 1
    missing += transact(engine, tables, lambda each: _named(each, name, question.given))
    found.missing = _some(missing, question.given["limit_"])
    return found


def sent(connection: Connection, question: Question) -> Sent:
    """Audit sent messages, where the database can compare them with the inbox."""
    places = question.outbox, question.inbox, question.key
    counted = connection.execute(statements.count_sent(*places), question.given).one()
    missing = []
    if counted.late:
        missing = _named(connection, statements.untaken(*places), question.given)
    return Sent(counted.messages, counted.untaken, counted.late, counted.oldest, missing)


def sent_apart(engine: Engine, inbox_engine: Engine, question: Question) -> Sent:
    """The same for an inbox elsewhere, page by page."""
    found = Sent()
    statement = statements.sent_page(question.outbox, question.key)
    for row, status in _asked(engine, inbox_engine, question, statement):
        found.messages += 1
        found.oldest = row.since if found.oldest is None else min(found.oldest, row.since)
        if status == "consumed":
            continue
        found.untaken += 1
        found.late += row.late
        if row.late and len(found.missing) < question.given["limit_"]:
            found.missing.append(Missing(row.id, row.key, row.state, row.since, status))
    return found


def _counted(connection: Connection, statement: Executable, question: Question) -> UnsentAudit:
    tables = question.outbox
    found = {row.place: row for row in connection.execute(statement, question.given)}
    line, dead, delayed = (found[table.name] for table in (tables.message, tables.dead, tables.delayed))
    return UnsentAudit(
        late=line.late + delayed.late,
        recent=line.untaken - line.late,
        dead=dead.untaken,
        delayed=delayed.messages - delayed.late,
        taken=line.messages - line.untaken + dead.messages - dead.untaken,
    )


def _take(found: UnsentAudit, row: Row[Any]) -> None:
    """Move a message to the taken ones, unless its count is 0 because it has moved meanwhile."""
    kind = "dead" if row.state == "dead" else "late" if row.late else "recent"
    count = getattr(found, kind)
    if count:
        setattr(found, kind, count - 1)
        found.taken += 1


def _some(missing: list[Missing], limit: int) -> list[Missing]:
    """At most `limit` waiting messages, then at most `limit` dead ones."""
    dead = [each for each in missing if each.state == "dead"]
    return [each for each in missing if each.state != "dead"][:limit] + dead[:limit]


def _asked(
    engine: Engine, inbox_engine: Engine, question: Question, statement: Executable
) -> Iterator[tuple[Row[Any], str | None]]:
    """Messages, read page by page, with the status of each in the inbox."""
    after = ""
    while True:
        given = question.given | {"after_": after, "limit_": _PAGE}
        page = transact(engine, question.outbox, lambda each: each.execute(statement, given).all())  # noqa: B023
        if not page:
            return
        look_up = partial(_known, question=question, keys={row.taken_by for row in page})
        known = transact(inbox_engine, question.outbox, look_up, question.taken)
        for row in page:
            yield row, known.get(row.taken_by)
        after = page[-1].id


def _known(connection: Connection, question: Question, keys: Iterable[str]) -> dict[str, str]:
    """The statuses of the keys that the inbox knows."""
    given = question.given | {"keys_": list(keys)}
    known = {row.key: row.status for row in connection.execute(statements.statuses(question.inbox), given)}
    taken = connection.execute(statements.taken(question.inbox), given).scalars()
    return known | dict.fromkeys(taken, "consumed")


def _named(connection: Connection, statement: Executable, given: dict[str, Any]) -> list[Missing]:
    return [Missing(*row) for row in connection.execute(statement, given)]
