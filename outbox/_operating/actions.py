"""Operators' decisions about a topic or one message: pause, resume, retry and drop.

Every function uses short transactions of its own and may run beside relays: each write checks that the
message is still in the place where it was read. The decision is stored in the same transaction.
"""

from typing import Any

from sqlalchemy import Connection, Delete, Engine, Insert, Row
from sqlalchemy.exc import IntegrityError

from inbox_outbox_base.checks import outbox_options
from inbox_outbox_base.databases.relaying import ALL_TOPICS
from inbox_outbox_base.errors.outbox import InvalidMessage, WrongState
from inbox_outbox_base.transactions.recording import Recording
from outbox._waking.hints import CHORES, notify
from outbox.schema import OutboxTables, tables

from . import statements
from .recording import recording
from .sending import is_alive, senders
from .stored_message import MessageState
from .transact import transact
from .writing import change, changed, find, let_go, lock_letter, revive


def pause(
    engine: Engine,
    topic: str = ALL_TOPICS,
    *,
    by: str | None = None,
    why: str | None = None,
    schema: str | None = None,
) -> bool:
    """Stop sending the messages of a topic, or with "*" of all topics; they can still be published.

    Relays notice within a second, or when they poll if no notification reaches them, and finish their current
    batch. Messages of other topics go on, even if an earlier message of their key is paused.

    Args:
        engine: the Engine of the outbox's database.
        topic: the topic's name.
        by: who decides, 1 to 255 bytes of UTF-8; None is this host and process.
        why: the reason, 1 to 1,000 characters, if you want to store one.
        schema: the PostgreSQL schema of the tables.

    Returns:
        Whether this changed anything: False if the topic was already paused.

    Raises:
        InvalidMessage: not a topic; or a pattern such as "orders.*", which relays would take for a name.
        InvalidOption: another argument is invalid.
        TablesMissing: the tables have not been created.
        UnsafeDatabase: row-level policies hide rows from this role.
    """
    all_tables = tables(schema)
    given = {"topic_": _one_or_all(topic)}
    note = recording("pause", by, why, schema, topic=topic)
    said = given | {"paused_by": note.by, "why": note.why}
    pausing = note.once(
        lambda each: _change_pauses(each, all_tables, statements.pause(all_tables), said, note)
    )
    try:
        return transact(engine, all_tables, pausing)
    except IntegrityError:
        if not transact(engine, all_tables, lambda each: _is_paused(each, all_tables, given)):
            raise
        return False  # another operator has just paused it


def resume(
    engine: Engine,
    topic: str = ALL_TOPICS,
    *,
    by: str | None = None,
    why: str | None = None,
    schema: str | None = None,
) -> bool:
    """Send the messages of a topic again. "*" ends the pause of all topics; those paused by name stay paused.
    A topic's own name ends only its own pause: while all topics are paused, its messages wait.

    Args:
        engine: the Engine of the outbox's database.
        topic: the topic's name.
        by: who decides, as for `pause`.
        why: the reason, as for `pause`.
        schema: the PostgreSQL schema of the tables.

    Returns:
        Whether it was paused.

    Raises the errors of `pause`.
    """
    all_tables = tables(schema)
    given = {"topic_": _one_or_all(topic)}
    note = recording("resume", by, why, schema, topic=topic)
    resuming = note.once(
        lambda each: _change_pauses(each, all_tables, statements.resume(all_tables), given, note)
    )
    return transact(engine, all_tables, resuming)


def _one_or_all(topic: str) -> str:
    checked = outbox_options.topics(topic)
    if checked != ALL_TOPICS and ALL_TOPICS in checked:
        raise InvalidMessage(f'topic={checked!r}: expected a whole topic, or "*" for all; it is no pattern')
    return checked


def _is_paused(connection: Connection, tables: OutboxTables, given: dict[str, str]) -> bool:
    return connection.execute(statements.is_paused(tables), given).first() is not None


def _change_pauses(
    connection: Connection,
    tables: OutboxTables,
    statement: Insert | Delete,
    given: dict[str, str | None] | dict[str, str],
    note: Recording,
) -> bool:
    has_changed = connection.execute(statement, given).rowcount == 1
    if has_changed:
        note.note(connection, 1)
        notify(connection, CHORES, tables.pause.schema)
    return has_changed


def retry(
    engine: Engine,
    message_id: str,
    *,
    by: str | None = None,
    why: str | None = None,
    schema: str | None = None,
) -> MessageState:
    """Send a message again, with its id. What happens depends on its state:

    - dead: it goes to the end of its bucket, behind all later messages of its key, and its attempts are
      counted from zero.
    - held: it keeps its place, and its attempts are counted from zero. Relays notice within five seconds.
    - waiting or unknown: it is sent within five seconds, and its attempts continue to count. If a relay is
      sending it right now, the outcome of that send decides.

    Args:
        engine: the Engine of the outbox's database.
        message_id: the id that `Outbox.publish` returned. Only dead and delayed messages have an index by id;
            to find another one, the whole outbox may be read.
        by: who decides, 1 to 255 bytes of UTF-8; None is this host and process.
        why: the reason, 1 to 1,000 characters, if you want to store one.
        schema: the PostgreSQL schema of the tables.

    Returns:
        The state in which it was.

    Raises:
        MessageNotFound: there is no such message; it may have been sent.
        WrongState: it is pending or delayed, or it was changed just now.
        InvalidOption: an argument is invalid.
        TablesMissing: the tables have not been created.
        UnsafeDatabase: row-level policies hide rows from this role.
    """
    all_tables = tables(schema)
    note = recording("retry", by, why, schema)

    def again(connection: Connection) -> MessageState:
        found = find(connection, all_tables, message_id)
        state = MessageState(found.state)
        if state is MessageState.DEAD:
            found = lock_letter(connection, all_tables, message_id)
            revive(connection, all_tables, [found])
        elif state is MessageState.HELD:
            change(connection, statements.let_go_one(all_tables), found)
        elif state in (MessageState.WAITING, MessageState.UNKNOWN):
            change(connection, statements.end_one_wait(all_tables), found)
        else:
            needed = "dead, held, waiting or unknown"
            raise WrongState(f"id={message_id!r}: state is {state}; this needs {needed}")
        _note(connection, note, found, state)
        return state

    return transact(engine, all_tables, note.once(again))


def drop(
    engine: Engine,
    message_id: str,
    *,
    by: str | None = None,
    why: str | None = None,
    dry_run: bool = False,
    schema: str | None = None,
) -> MessageState:
    """Delete a message in any state. The messages behind it go on.

    A message that a relay is sending cannot be dropped. One that a relay has just read may still be sent: to
    be sure, pause its topic a second before. A message in state unknown may already have arrived.

    Args:
        engine: the Engine of the outbox's database.
        message_id: the message's id, as for `retry`.
        by: who decides, as for `retry`.
        why: the reason, as for `retry`.
        dry_run: only say what would happen: the same result or error, and nothing is changed or stored.
        schema: the PostgreSQL schema of the tables.

    Returns:
        The state in which it was.

    Raises:
        MessageNotFound: there is no such message; it may have been sent.
        WrongState: a relay is sending it, or it was changed just now.
        InvalidOption: an argument is invalid.
        TablesMissing: the tables have not been created.
        UnsafeDatabase: row-level policies hide rows from this role.
    """
    all_tables = tables(schema)
    note = recording("drop", by, why, schema)
    outbox_options.flag("dry_run", dry_run)

    def delete(connection: Connection) -> MessageState:
        found = find(connection, all_tables, message_id)
        state = MessageState(found.state)
        is_aside = state in (MessageState.DEAD, MessageState.DELAYED)
        if not is_aside:
            if not dry_run:
                # A relay locks its own row before it notes a batch, so it waits here and then finds the
                # message gone.
                connection.execute(statements.lock_relays(all_tables))
            state = _unless_sent(connection, all_tables, found)
        if dry_run:
            return state
        if is_aside:
            if state is MessageState.DEAD:
                found = lock_letter(connection, all_tables, message_id)
                gone = statements.forget_dead(all_tables)
                place: dict[str, Any] = {"these": [message_id]}
            else:
                gone = statements.drop_delayed(all_tables)
                place = {"id_": message_id, "sequence_": found.sequence}
            if connection.execute(gone, place).rowcount != 1:
                raise changed(message_id)
        else:
            change(connection, statements.drop(all_tables), found)
        let_go(connection, all_tables, [found])
        _note(connection, note, found, state)
        return state

    return transact(engine, all_tables, note.once(delete))


def _note(connection: Connection, note: Recording, message: Row[Any], state: MessageState) -> None:
    note.filter = {"id": message.id, "topic": message.topic, "key": message.key, "state": state.value}
    note.note(connection, 1)


def _unless_sent(connection: Connection, tables: OutboxTables, message: Row[Any]) -> MessageState:
    """The state of a message that waits for a relay; unknown if a relay was lost while it was sending it.

    Raises:
        WrongState: a relay is sending it.
    """
    relay = senders(connection, tables).get((message.bucket, message.sequence))
    if relay is None:
        return MessageState(message.state)
    if is_alive(relay):
        raise WrongState(
            f"id={message.id!r}: relay {relay.name} is sending it; pause its topic for a second, or try again"
        )
    return MessageState.UNKNOWN
