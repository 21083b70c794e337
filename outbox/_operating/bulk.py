"""Operators' decisions about many messages of the outbox.

What they take is read once, when the call begins, or was read by the listing whose `seen` is given. Each
transaction locks some of these messages, leaves those that have changed since, and stores its part of the
decision. So it takes no message that nobody saw, and a call that is killed has done what is stored.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, Row

from inbox_outbox_base.checks import outbox_options
from inbox_outbox_base.databases.letter import Place
from inbox_outbox_base.errors.outbox import InvalidOption
from inbox_outbox_base.words.deciding import BulkResult
from outbox.schema import OutboxTables, tables

from . import seeing, statements
from .recording import recording
from .seeing import SeenMessage, checked_state
from .sending import is_alive, senders
from .stored_message import MessageState
from .transact import transact
from .writing import let_go, revive

T = TypeVar("T")
_WRITTEN = 1_000
"""Messages that one transaction changes."""
_PURGED = 500
_SENT = (MessageState.UNKNOWN, MessageState.HELD)
"""What is in these states stays in them when a relay is lost that was sending it."""
_RETRIED = (MessageState.DEAD, MessageState.HELD, MessageState.WAITING, MessageState.UNKNOWN)


def retry_all(
    engine: Engine,
    state: MessageState | str,
    *,
    topic: str | None = None,
    key: str | None = None,
    error: str | None = None,
    seen: str | None = None,
    by: str | None = None,
    why: str | None = None,
    dry_run: bool = False,
    schema: str | None = None,
) -> BulkResult:
    """`retry` all messages that are in a state now, a thousand in a transaction. Dead letters go in the order
    in which they died, those of a key in the order in which they were published; all others keep their
    places. It keeps the ids of all of them in memory.

    Args:
        engine: the Engine of the outbox's database.
        state: dead, held, waiting or unknown.
        topic: only messages of this topic; None is any.
        key: only messages of this key; None is any.
        error: only messages whose error contains this text, 1 to 1,000 characters; case matters.
        seen: only messages that a listing has seen (`peek(...).seen`), and only as they were then; None is
            all that are there when the call begins.
        by: who decides, 1 to 255 bytes of UTF-8; None is this host and process.
        why: the reason, 1 to 1,000 characters, if you want to store one.
        dry_run: only count: nothing is changed or stored.
        schema: the PostgreSQL schema of the tables.

    Returns:
        How many were retried: a number, with `.changed`, how many others had changed since they were seen or
        since the call began, or were gone. Those are left as they are.

    Raises:
        InvalidOption: an argument is invalid, or `seen` came with a listing of messages in another state.
        TablesMissing: the tables have not been created.
        UnsafeDatabase: row-level policies hide rows from this role.
    """
    wanted = checked_state("state", state)
    if wanted not in _RETRIED:
        raise InvalidOption(f"state={wanted.value!r}: expected dead, held, waiting or unknown")
    run = _BulkRun(engine, "retry_all", wanted, topic, key, error, seen, by, why, schema, dry_run=dry_run)
    return run.take()


def drop_all(
    engine: Engine,
    state: MessageState | str,
    *,
    topic: str | None = None,
    key: str | None = None,
    error: str | None = None,
    seen: str | None = None,
    by: str | None = None,
    why: str | None = None,
    dry_run: bool = False,
    schema: str | None = None,
) -> BulkResult:
    """`drop` all messages that are in a state now, a thousand in a transaction. It keeps the ids of all of
    them in memory.

    A message that a relay is sending is left, and counts as changed; so does one that a lost relay was
    sending, until another relay has noticed and its state is unknown. One that a relay has just read may
    still be sent: to be sure, pause its topic a second before.

    Args:
        engine: the Engine of the outbox's database.
        state: any.
        topic: only messages of this topic; None is any.
        key: only messages of this key; None is any.
        error: as for `retry_all`; not for delayed messages, which have none.
        seen: as for `retry_all`.
        by: who decides, as for `retry_all`.
        why: the reason, as for `retry_all`.
        dry_run: only count, as for `retry_all`.
        schema: the PostgreSQL schema of the tables.

    Returns:
        How many were dropped, as `retry_all`.

    Raises the errors of `retry_all`.
    """
    wanted = checked_state("state", state)
    run = _BulkRun(engine, "drop_all", wanted, topic, key, error, seen, by, why, schema, dry_run=dry_run)
    return run.take()


def purge_dead(
    engine: Engine,
    older_than: float | timedelta,
    *,
    topic: str | None = None,
    by: str | None = None,
    why: str | None = None,
    dry_run: bool = False,
    schema: str | None = None,
) -> int:
    """Delete dead letters that died longer ago than `older_than`, some hundred in a transaction.

    Args:
        engine: the Engine of the outbox's database.
        older_than: seconds, or a `timedelta`.
        topic: only messages of this topic; None is any.
        by: who decides, as for `retry_all`.
        why: the reason, as for `retry_all`.
        dry_run: only count, as for `retry_all`.
        schema: the PostgreSQL schema of the tables.

    Returns:
        How many there were.

    Raises:
        InvalidOption: an argument is invalid.
        TablesMissing: the tables have not been created.
        UnsafeDatabase: row-level policies hide rows from this role.
    """
    all_tables = tables(schema)
    age = outbox_options.seconds("older_than", older_than)
    note = recording("purge_dead", by, why, schema, older_than=age, topic=topic)
    outbox_options.flag("dry_run", dry_run)
    equal = {} if topic is None else {"topic": outbox_options.topic(topic)}
    if dry_run:
        counted = statements.count_old_dead(all_tables).filter_by(**equal)
        count = transact(engine, all_tables, lambda each: each.execute(counted, {"age": -age}).scalar_one())
        return int(count)
    given = {"age": -age, "limit": _PURGED}
    old = statements.old_dead(all_tables).filter_by(**equal)
    still = statements.still_dead(all_tables).where(statements.is_old(all_tables)).filter_by(**equal)

    def delete(connection: Connection) -> int | None:
        these = {"these": list(connection.execute(old, given).scalars())}
        if not these["these"]:
            return None
        # Letters that are retried meanwhile keep their ids; some may have died again just now.
        connection.execute(statements.lock_dead(all_tables), these)
        mine = connection.execute(still, given | these).all()
        connection.execute(statements.forget_dead(all_tables), {"these": [each.id for each in mine]})
        let_go(connection, all_tables, mine)
        note.note(connection, len(mine))
        return len(mine)

    deleted = 0
    while (page := transact(engine, all_tables, note.once(delete))) is not None:  # 0: others took them first
        deleted += page
    return deleted


class _BulkRun:
    """One call of a bulk decision."""

    def __init__(
        self,
        engine: Engine,
        action: str,
        state: MessageState,
        topic: str | None,
        key: str | None,
        error: str | None,
        seen: str | None,
        by: str | None,
        why: str | None,
        schema: str | None,
        *,
        dry_run: bool,
    ) -> None:
        self._engine = engine
        self._tables = tables(schema)
        self._state = state
        self._is_drop = action == "drop_all"
        self._filter = seeing.checked_filter(state, topic, key, error)
        self._named = None if seen is None else seeing.unpack(seen, state)
        self._dry_run = outbox_options.flag("dry_run", dry_run)
        told = self._filter | {"seen": None if self._named is None else len(self._named)}
        self._note = recording(action, by, why, schema, state=state.value, **told)

    def take(self) -> BulkResult:
        """Take part after part, and count."""
        named = self._transact(self._all) if self._named is None else self._named
        done = changed = 0
        for start in range(0, len(named), _WRITTEN):
            part = named[start : start + _WRITTEN]
            taken, left = self._transact(self._note.once(partial(self._take, seen=part)))
            done, changed = done + taken, changed + left
        return BulkResult(done, changed)

    def _transact(self, work: Callable[[Connection], T]) -> T:
        return transact(self._engine, self._tables, work)

    def _all(self, connection: Connection) -> list[SeenMessage]:
        """What there is now."""
        statement = seeing.every(self._tables, self._state, *self._filter)
        table = seeing.table_of(self._tables, self._state)
        given = {f"{name}_": value for name, value in self._filter.items()}
        return [seeing.seen_of(row, table) for row in connection.execute(statement, given)]

    def _take(self, connection: Connection, seen: Sequence[SeenMessage]) -> tuple[int, int]:
        """In one transaction, how many of these messages were taken, and how many had changed."""
        may_be_sent = self._is_drop and seeing.table_of(self._tables, self._state) is self._tables.message
        if not self._dry_run:
            if may_be_sent:  # before the messages, as relays do; none of them then notes a batch
                connection.execute(statements.lock_relays(self._tables))
            seeing.lock(connection, self._tables, self._state, seen)
        found = seeing.as_seen(connection, self._tables, self._state, seen)
        chosen = [row for row in found if seeing.is_chosen(row, self._state, self._filter)]
        if not self._is_drop and self._state is MessageState.UNKNOWN:
            chosen = [row for row in chosen if row.retry_at is not None]  # the others wait for no time
        taken: Sequence[Row[Any]] = chosen
        if may_be_sent:
            sent = senders(connection, self._tables)
            taken = [each for each in chosen if self._can_be_dropped(each, sent)]
        if taken and not self._dry_run:
            write = _drop if self._is_drop else _retry
            taken = write(connection, self._tables, self._state, taken)
            self._note.note(connection, len(taken))
        return len(taken), len(seen) - len(found) + len(chosen) - len(taken)

    def _can_be_dropped(self, message: Row[Any], sent: Mapping[Place, Row[Any]]) -> bool:
        """Whether no relay is sending this message. What a lost relay was sending may have been taken, but in
        some states its row does not say so until another relay has noticed."""
        relay = sent.get((message.bucket, message.sequence))
        return relay is None or (self._state in _SENT and not is_alive(relay))


def _retry(
    connection: Connection, tables: OutboxTables, state: MessageState, messages: Sequence[Row[Any]]
) -> Sequence[Row[Any]]:
    """Retry them; return those that were."""
    if state is MessageState.DEAD:
        revive(connection, tables, messages)
        return messages
    is_held = state is MessageState.HELD
    statement = statements.let_go(tables) if is_held else statements.end_wait(tables)
    for part in seeing.in_buckets(messages):
        connection.execute(statement.where(statements.of_bucket(tables)), part)
    return messages


def _drop(
    connection: Connection, tables: OutboxTables, state: MessageState, messages: Sequence[Row[Any]]
) -> Sequence[Row[Any]]:
    """Drop them; return those that were."""
    if state is MessageState.DEAD:
        connection.execute(statements.forget_dead(tables), {"these": [each.id for each in messages]})
    elif state is MessageState.DELAYED:
        # They are not locked: a relay may move some meanwhile, whose ids must stay taken.
        gone = statements.drop_delayed(tables)
        places = ({"id_": each.id, "sequence_": each.number} for each in messages)
        dropped = [connection.execute(gone, place).rowcount == 1 for place in places]
        messages = [each for each, is_dropped in zip(messages, dropped, strict=True) if is_dropped]
    else:
        for part in seeing.in_buckets(messages):
            connection.execute(statements.drop_messages(tables), part)
    let_go(connection, tables, messages)
    return messages
