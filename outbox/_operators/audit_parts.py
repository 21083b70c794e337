"""The two halves of an audit: what is still in the outbox, and what has left it."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Engine, Executable, Row

from inbox.schema import Tables

from ..schema import OutboxTables
from . import audit_statements as statements
from .transact import transact

_PAGE = 1_000


@dataclass(frozen=True, slots=True)
class Missing:
    """One message that was committed and not taken."""

    id: str
    key: str | None
    state: str
    """pending, waiting, unknown or held: it was not sent yet; dead: it is not sent any more; sent: nothing
    says that it was taken."""
    since: datetime
    """When it was published, has died or was sent."""
    status: str | None
    """Of one that was sent: its status in the consumer's inbox, in status-table mode."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked, and where the answer lies."""

    outbox: OutboxTables
    inbox: Tables
    key: str
    given: dict[str, Any]
    """The parameters of the statements."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """What is still in the outbox."""

    messages: int
    recent: int
    dead: int
    delayed: int
    missing: list[Missing]


@dataclass(slots=True)
class Sent:
    """What has left it."""

    messages: int = 0
    untaken: int = 0
    recent: int = 0
    """Of those that were not taken."""
    oldest: datetime | None = None
    missing: list[Missing] = field(default_factory=list)


def waiting(connection: Connection, question: Question) -> Waiting:
    """Look at what is still in the outbox."""
    tables, given = question.outbox, question.given
    counted = connection.execute(statements.count_unsent(tables), given).one()
    dead = connection.execute(statements.count_aside(tables.dead), given).scalar_one()
    delayed = connection.execute(statements.count_aside(tables.delayed), given).scalar_one()
    missing = _named(connection, statements.unsent(tables), given)
    missing += _named(connection, statements.dead(tables), given)
    return Waiting(counted.messages, counted.recent, dead, delayed, missing)


def together(connection: Connection, question: Question) -> Sent:
    """Look at what has left, where the database can compare it with the inbox."""
    places = question.outbox, question.inbox, question.key
    counted = connection.execute(statements.count_sent(*places), question.given).one()
    missing = []
    if counted.untaken > counted.recent:
        missing = _named(connection, statements.untaken(*places), question.given)
    return Sent(counted.messages, counted.untaken, counted.recent, counted.oldest, missing)


def apart(engine: Engine, inbox_engine: Engine, question: Question) -> Sent:
    """Look at what has left, page by page, and ask the inbox about each page."""
    sent, after = Sent(), ""
    statement = statements.sent_page(question.outbox, question.key)
    while True:
        given = question.given | {"after_": after, "limit_": _PAGE}
        page = transact(engine, question.outbox, lambda each: each.execute(statement, given).all())  # noqa: B023
        if not page:
            return sent
        keys = {row.taken_by for row in page}
        known = transact(inbox_engine, question.outbox, lambda each: _known(each, question, keys))  # noqa: B023
        _add(sent, page, known, question.given["limit_"])
        after = page[-1].id


def _known(connection: Connection, question: Question, keys: Iterable[str]) -> dict[str, str]:
    """What the inbox knows of some keys: their status."""
    given = question.given | {"keys_": list(keys)}
    known = {row.key: row.status for row in connection.execute(statements.statuses(question.inbox), given)}
    taken = connection.execute(statements.taken(question.inbox), given).scalars()
    return known | dict.fromkeys(taken, "consumed")


def _add(sent: Sent, page: Iterable[Row[Any]], known: dict[str, str], limit: int) -> None:
    for row in page:
        sent.messages += 1
        sent.oldest = row.since if sent.oldest is None else min(sent.oldest, row.since)
        status = known.get(row.taken_by)
        if status == "consumed":
            continue
        sent.untaken += 1
        sent.recent += row.recent
        if not row.recent and len(sent.missing) < limit:
            sent.missing.append(Missing(row.id, row.key, row.state, row.since, status))


def _named(connection: Connection, statement: Executable, given: dict[str, Any]) -> list[Missing]:
    return [Missing(*row) for row in connection.execute(statement, given)]
