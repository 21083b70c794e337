"""Compares the messages that were committed, sent and taken, and names those that are missing."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Literal

from sqlalchemy import Connection, Engine, Select, Table

from inbox_outbox_base.checks import outbox_options
from inbox_outbox_base.checks.missing import is_there, missing_table
from inbox_outbox_base.checks.options import MOST_ROWS
from inbox_outbox_base.errors.outbox import TablesMissing
from inbox_outbox_base.tables import inbox as inbox_schemas
from inbox_outbox_base.tables.inbox import Tables
from outbox.schema import tables

from . import audit_parts as parts
from . import audit_statements as statements
from .audit_parts import Missing, Question
from .sending import sent_now
from .transact import transact

BusinessKey = Literal["key", "id"]

_NOWHERE = (-1, -1)
"""A place that no message has."""
_BEFORE_ALL = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Audit:
    """All committed messages of a topic, counted by progress. The counts from `not_sent` to `taken` add up to
    `committed`; on a live system they are taken at slightly different moments."""

    topic: str
    consumer: str
    committed: int
    not_sent: int
    """Held, or waiting for a relay for longer than the grace; delayed messages wait from when they are
    due, whether a relay has moved them or not."""
    dead: int
    not_taken: int
    """Sent longer ago than the grace, and not taken by the consumer."""
    on_the_way: int
    """Published or sent within the grace."""
    delayed: int
    """Not due yet, or due within the grace."""
    taken: int
    """Taken by the consumer, even if still in the outbox because the send was not answered."""
    missing: tuple[Missing, ...]
    """The first messages that are not sent, dead or not taken: at most `limit` of each kind."""
    sent_since: datetime | None
    """When the oldest recorded message was sent; None if there are no records (`Relay(keep_sent=...)`)."""
    unrecorded_until: datetime | None
    """Until then, messages published since `since` may have left without a record, so that `committed` does
    not include them: sent by a relay without `keep_sent`, dropped, or purged. None if there are none."""
    taken_since: datetime | None
    """When the consumer took the oldest message that its inbox still knows. For messages sent before that,
    it is unknown whether they were taken."""

    @property
    def is_complete(self) -> bool:
        """Whether nothing is missing, and nothing has left without a record."""
        return not self.is_missing_some and self.unrecorded_until is None

    @property
    def is_missing_some(self) -> bool:
        """Whether messages are missing."""
        return bool(self.not_sent or self.dead or self.not_taken)


def audit(
    engine: Engine,
    topic: str,
    consumer: str,
    *,
    key: BusinessKey = "key",
    since: datetime | None = None,
    grace: float | timedelta = 60,
    limit: int = 100,
    inbox_engine: Engine | None = None,
    schema: str | None = None,
    inbox_schema: str | None = None,
) -> Audit:
    """Compare the messages committed to a topic with those a consumer has taken, and name the missing ones.

    Changes nothing. If outbox and inbox share a database, the database compares them; otherwise the records
    are read in pages, and memory use does not depend on their number.

    The audit cannot count messages that were sent by relays without `keep_sent`, dropped or purged, and says
    so (`unrecorded_until`). Nor can it know about messages that were sent longer ago than `keep_sent`;
    messages whose inbox row has been purged (leave them out with `since`); and messages that the consumer
    keys by its own function. With `key="key"`, once one message of a key was taken, all sent
    messages of the key count as taken, as for the inbox; messages refused or never sent do not.

    Args:
        engine: the Engine of the outbox's database.
        topic: the messages' topic.
        consumer: the consumer's name, of either mode.
        key: the consumer's key: "key" (`inbox.message_key`) or "id" (`inbox.message_id`).
        since: ignore messages published before this datetime, which has a time zone.
        grace: how long messages can be on their way, in seconds or as `timedelta`.
        limit: the most messages to name of each kind.
        inbox_engine: the Engine of the inbox's database, if it is another one.
        schema: the PostgreSQL schema of the tables.
        inbox_schema: the schema of the inbox's tables; None is `schema`, or with `inbox_engine` the default.

    Raises:
        InvalidOption: an argument is invalid.
        TablesMissing: the tables have not been created.
        UnsafeDatabase: row-level policies hide rows from this role.
    """
    outbox_options.one_of("key", key, ("key", "id"))
    given: dict[str, Any] = {
        "topic_": outbox_options.topic(topic),
        "consumer_": outbox_options.consumer(consumer),
        "since_": _BEFORE_ALL if since is None else outbox_options.aware("since", since),
        "age_": -outbox_options.seconds("grace", grace),
        "limit_": outbox_options.count("limit", limit, largest=MOST_ROWS),
    }
    its_schema = inbox_schema or (schema if inbox_engine is None else None)
    outbox = tables(schema)
    given["sending_"] = transact(engine, outbox, lambda each: sent_now(each, outbox)) or [_NOWHERE]
    inbox = inbox_schemas.tables(its_schema)
    made = _made(inbox_engine or engine, inbox)
    both = statements.TakenRows(
        *(each if each in made else statements.absent(each) for each in _modes(inbox))
    )
    question = Question(outbox, made, key, given, both)
    # Unsent messages first: a message that is sent meanwhile is then counted twice, not missed.
    if inbox_engine is None:
        unsent = transact(engine, question.outbox, partial(parts.unsent, question=question), question.both)
        sent = transact(engine, question.outbox, partial(parts.sent, question=question), question.both)
    else:
        unsent = parts.unsent_apart(engine, inbox_engine, question)
        sent = parts.sent_apart(engine, inbox_engine, question)
    return Audit(
        topic=topic,
        consumer=consumer,
        committed=unsent.late + unsent.recent + unsent.dead + unsent.delayed + unsent.taken + sent.messages,
        not_sent=unsent.late,
        dead=unsent.dead,
        not_taken=sent.late,
        on_the_way=unsent.recent + sent.untaken - sent.late,
        delayed=unsent.delayed,
        taken=unsent.taken + sent.messages - sent.untaken,
        missing=(*unsent.missing, *sent.missing),
        sent_since=sent.oldest,
        unrecorded_until=transact(engine, question.outbox, lambda each: _unrecorded(each, question)),
        taken_since=_taken_since(inbox_engine or engine, inbox, question),
    )


def _modes(inbox: Tables) -> tuple[Table, Table]:
    return inbox.message, inbox.status


def _made(engine: Engine, inbox: Tables) -> list[Table]:
    """The tables that say what was taken, of the modes that the application uses.

    Raises:
        TablesMissing: there are none.
    """
    made = [each for each in _modes(inbox) if is_there(engine, each)]
    if not made:
        raise TablesMissing(missing_table(inbox.message))
    return made


def _unrecorded(connection: Connection, question: Question) -> datetime | None:
    """Read last: messages that leave during the audit are noted by then."""
    last, goes_on, now = connection.execute(statements.unrecorded(question.outbox), question.given).one()
    if goes_on:
        last = now
    return None if last is None or last < question.given["since_"] else last


def _taken_since(engine: Engine, inbox: Tables, question: Question) -> datetime | None:
    def oldest(table: Table, statement: Select[Any]) -> datetime | None:
        found: datetime | None = transact(
            engine,
            question.outbox,
            lambda each: each.execute(statement, question.given).scalar_one(),
            [table],
        )
        return found

    asked = {inbox.message: statements.oldest_taken(inbox), inbox.ledger: statements.oldest_load(inbox)}
    # The ledger belongs to Spark alone.
    times = [oldest(each, asked[each]) for each in asked if is_there(engine, each)]
    return min((time for time in times if time is not None), default=None)
