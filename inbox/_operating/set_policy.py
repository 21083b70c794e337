"""Deliberate changes to a consumer's stored policy."""

from datetime import timedelta
from typing import Any

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from inbox_outbox_base.calls.retry import retry
from inbox_outbox_base.checks import deciding, options
from inbox_outbox_base.checks.key_times import FORMS, KeyTime
from inbox_outbox_base.checks.missing import raise_clearer
from inbox_outbox_base.checks.retention import Retention
from inbox_outbox_base.databases import taking_statements
from inbox_outbox_base.databases.registry import taking
from inbox_outbox_base.databases.taking import at_level
from inbox_outbox_base.errors import codes
from inbox_outbox_base.errors.inbox import InboxError, InvalidOption
from inbox_outbox_base.tables.inbox import Tables, tables
from inbox_outbox_base.transactions.connect import connected
from inbox_outbox_base.transactions.declaring import check_keys
from inbox_outbox_base.transactions.policy import DEAD_RETENTION, Mode, Policy, look, merged, row, times
from inbox_outbox_base.transactions.recording import Recording
from inbox_outbox_base.transactions.safety import check_sees_all

_MODES = ("exactly-once", "status")
_TRIES = 8


def set_policy(
    engine: Engine,
    consumer: str,
    *,
    retention: Retention | float | timedelta | None = None,
    dead_retention: float | timedelta | None = None,
    mode: Mode | None = None,
    key_time: KeyTime | None = None,
    by: str | None = None,
    why: str | None = None,
    schema: str | None = None,
) -> Policy:
    """Change a consumer's policy in the table `inbox_consumer`; None leaves a value unchanged.

    Only this shortens a retention: inboxes only lengthen it. First make the inboxes ask for the new policy,
    or for none: after a restart, those that ask for another one raise `PolicyConflict` or lengthen it again.

    Args:
        engine: the database.
        consumer: its name.
        retention: how long its keys are kept (`Retention`, seconds or `timedelta`).
        dead_retention: how long its dead and halted messages are kept, in status-table mode.
        mode: "exactly-once" or "status"; required if nothing is stored yet.
        key_time: the form of its keys, as for `Inbox`, if nothing is stored yet; it never changes.
        by: who decides, 1 to 255 bytes of UTF-8; None is this host and process.
        why: the reason, 1 to 1,000 characters, if you want to store one.
        schema: the PostgreSQL schema of the tables.

    Raises:
        InvalidOption: an argument cannot be used, or `mode` is missing; nothing was changed.
        TablesMissing: the tables do not exist.
        UnsafeDatabase: row-level policies hide rows of this table from the role.
    """
    options.consumer(consumer)
    kept = None if retention is None else Retention.of(retention)
    dead = None if dead_retention is None else options.seconds("dead_retention", dead_retention)
    if mode is not None:
        options.one_of("mode", mode, _MODES)
    if key_time is not None:
        options.one_of("key_time", key_time, tuple(FORMS))
    who, reason = deciding.operator(by), deciding.reason("why", why)
    database, all_tables = taking(engine.dialect.name), tables(schema)
    asked = times(kept, dead)
    what = {"consumer": consumer, "mode": mode, "key_time": key_time} | asked
    note = Recording(all_tables.decision, "inbox.set_policy", who, reason, what)
    engine = at_level(engine, database.own_isolation)

    def decide(connection: Connection) -> Policy:
        policy = _replace(connection, all_tables, consumer, mode, key_time, asked)
        note.note(connection, 1)
        return policy

    decide_once = note.once(decide)

    def replace() -> Policy:
        with connected(engine) as connection, connection.begin():
            return decide_once(connection)

    def may_retry(error: Exception, _: int) -> bool:
        return isinstance(error, _Changed) or (isinstance(error, DBAPIError) and codes.is_transient(error))

    return retry(replace, _TRIES, may_retry)


class _Changed(InboxError):
    """Somebody else has just changed the policy."""


def _replace(
    connection: Connection,
    tables: Tables,
    consumer: str,
    mode: str | None,
    key_time: str | None,
    asked: dict[str, int | None],
) -> Policy:
    try:
        check_sees_all(connection, [tables.consumer])
        rows = connection.execute(
            taking_statements.policies(tables, of_one=True), {"consumer_": consumer}
        ).all()
        stored = merged(rows) if rows else None
        chosen = mode or ("nothing" if stored is None else stored.mode)
        if chosen not in _MODES:
            raise InvalidOption(
                f"mode=None: inbox_consumer says {chosen} about {consumer!r}; expected exactly-once or status"
            )
        if chosen == "exactly-once" and asked["dead_retention"] is not None:
            raise InvalidOption("dead_retention: there are no dead messages in mode exactly-once")
        form = key_time if stored is None else stored.key_time
        if key_time not in (None, form):
            raise InvalidOption(
                f"key_time={key_time!r}: inbox_consumer says {form!r} about {consumer!r}, and a consumer "
                "keeps the form of its keys: rename it"
            )
        if form is not None and form not in FORMS:
            raise InvalidOption(f"consumer={consumer!r}: its keys have two forms ({form}): rename it")
        if stored is None and form is not None:
            check_keys(connection, tables, consumer, chosen, FORMS[form])  # type: ignore[arg-type]
        values: dict[str, Any] = times(Retention(), DEAD_RETENTION.total_seconds())
        for source in (stored.seconds if stored else {}, asked):
            values |= {name: value for name, value in source.items() if value is not None}
        # Of a consumer's rows, the longest times count: to shorten one, the other rows must go, but not one
        # that somebody has added meanwhile.
        for each in rows:
            this = {"consumer_": consumer, "id_": each.id}
            if connection.execute(taking_statements.withdraw(tables), this).rowcount != 1:
                raise _Changed(
                    f"consumer={consumer!r}: others have changed its policy {_TRIES} times in a row"
                )
        connection.execute(taking_statements.declare(tables), row(consumer, chosen, values, form))
        return look(connection, tables, consumer)[consumer]
    except DBAPIError as error:
        raise_clearer(connection, tables.consumer, error)
