"""Take messages in the caller's transaction, whose COMMIT keeps them or raises, and let monitoring hear of
them once it has committed."""

from collections import Counter
from datetime import datetime

from sqlalchemy import Connection

from inbox_outbox_base.databases.taking import Attempt, KeyBatch, Stored
from inbox_outbox_base.monitoring.events import OF_VERDICT, EventKind, digests_of
from inbox_outbox_base.tables.inbox import Tables
from inbox_outbox_base.words.incoming import Verdict

from .accept import Terms, accept, ours
from .accept_many import Messages, accept_many
from .announcing import announce

_KINDS = OF_VERDICT | {Verdict.NEW: EventKind.TAKEN}


def answer(
    connection: Connection, attempt: Attempt, terms: Terms, message_time: datetime | None
) -> tuple[Verdict, Stored | None]:
    """As `accept`."""
    own = ours(connection)
    try:  # not `with`, which would cost each message half a microsecond
        verdict, stored = accept(connection, attempt, terms, message_time)
    except BaseException as error:
        own.mark(error)
        raise
    if (hooks := terms.hooks) is None:
        if verdict is Verdict.NEW:
            announce(connection, None, attempt)
    else:
        digests = digests_of(verdict, attempt.digest, None if stored is None else stored.digest)
        about = {"kind": _KINDS[verdict], "consumer": attempt.consumer, "key": attempt.key}
        announce(connection, hooks, attempt if verdict is Verdict.NEW else None, **about, **digests)
    return verdict, stored


def answer_many(
    connection: Connection, tables: Tables, consumer: str, messages: Messages, terms: Terms
) -> list[Verdict]:
    """As `accept_many`; the messages of a verdict are one event."""
    verdicts, claim = accept_many(connection, tables, consumer, messages, terms)
    for verdict, count in Counter(verdicts).items():
        if (hooks := terms.hooks) is not None or verdict is Verdict.NEW:
            its = messages.keys
            if count < len(verdicts):
                its = [key for key, each in zip(its, verdicts, strict=True) if each is verdict]
            taken = KeyBatch(tables, consumer, claim, its) if verdict is Verdict.NEW else None
            about = {"kind": _KINDS[verdict], "consumer": consumer, "key": its[0] if count == 1 else ""}
            announce(connection, hooks, taken, count=count, **about)
    return verdicts
