"""What was committed, sent and taken, compared; and what is missing."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal

from sqlalchemy import Engine

from inbox_outbox_base.checks import outbox_options
from inbox_outbox_base.tables import inbox as inbox_schemas
from outbox.schema import tables

from . import audit_parts as parts
from . import audit_statements as statements
from .audit_parts import Missing, Question
from .transact import transact

BusinessKey = Literal["key", "id"]

_BEFORE_ALL = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Audit:
    """Every committed message of a topic, by how far it is. The counts, from `not_sent` to `taken`, add up to
    `committed`; on a live system they are those of slightly different moments."""

    topic: str
    consumer: str
    committed: int
    not_sent: int
    """They wait for a relay longer than the grace (if they were delayed, from when they were due), or are
    held."""
    dead: int
    not_taken: int
    """They were sent longer ago than the grace, and the consumer has not taken them."""
    on_the_way: int
    """They were published or sent within the grace."""
    delayed: int
    taken: int
    """Also those that are still in the outbox, because nobody answered when they were sent."""
    missing: tuple[Missing, ...]
    """The first of those that are not sent, dead and not taken: so many of each, at most."""
    sent_since: datetime | None
    """When the oldest message was sent of which there is a record; None without any: then relays keep none
    (`Relay(keep_sent=...)`), and what has left is not among the committed."""
    taken_since: datetime | None
    """When the oldest message was taken that the consumer's inbox still knows. Of those that were sent before
    that nobody can say whether they were taken."""

    @property
    def is_complete(self) -> bool:
        """Whether nothing is missing."""
        return not (self.not_sent or self.dead or self.not_taken)


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
    """Compare what was committed to a topic with what a consumer has taken, and name what is missing.

    It changes nothing. Where outbox and inbox share a database that compares them; otherwise the records
    come in pages, and the memory that is needed does not depend on how many there are.

    What it cannot know: messages that were sent by relays without `keep_sent`, or longer ago than that;
    whether a message was taken whose row is purged from the inbox by now (`since` leaves such out); messages
    that the consumer keys by a function of its own. With `key="key"`, two messages of one key count as taken
    when one of them was, as they do for the inbox; not those that were refused or never sent.

    Args:
        engine: where the outbox is; an Engine.
        topic: of which messages.
        consumer: the inbox's name, of either mode.
        key: what the consumer takes messages by: "key" (`inbox.message_key`) or "id" (`inbox.message_id`).
        since: leave out what was published before that; a datetime with its time zone.
        grace: how long messages may be on their way, in seconds or as `timedelta`.
        limit: so many messages are named of each kind, at most.
        inbox_engine: where the inbox is, if elsewhere.
        schema: the PostgreSQL schema of the tables.
        inbox_schema: that of the inbox's, if another; in another database None is its own.

    Raises:
        InvalidOption: an argument cannot be used.
        TablesMissing: the tables have not been made.
    """
    outbox_options.one_of("key", key, ("key", "id"))
    given = {
        "topic_": outbox_options.topic(topic),
        "consumer_": outbox_options.consumer(consumer),
        "since_": _BEFORE_ALL if since is None else outbox_options.aware("since", since),
        "age_": -outbox_options.seconds("grace", grace),
        "limit_": outbox_options.count("limit", limit),
    }
    its_schema = inbox_schema or (schema if inbox_engine is None else None)
    question = Question(tables(schema), inbox_schemas.tables(its_schema), key, given)
    # In this order: a message that moves on meanwhile is seen twice rather than nowhere.
    if inbox_engine is None:
        unsent = transact(engine, question.outbox, lambda each: parts.unsent(each, question))
        sent = transact(engine, question.outbox, lambda each: parts.sent(each, question))
    else:
        unsent = parts.unsent_apart(engine, inbox_engine, question)
        sent = parts.sent_apart(engine, inbox_engine, question)
    taken_since = transact(
        inbox_engine or engine,
        question.outbox,
        lambda each: each.execute(statements.oldest_taken(question.inbox), given).scalar_one(),
    )
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
        taken_since=taken_since,
    )
