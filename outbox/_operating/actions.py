"""Operators' actions on messages of the outbox: pause, retry, drop and purge.

Every function uses short transactions of its own and may run beside relays: each write checks that the
message is still in the place where it was read.
"""

import json
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any

from sqlalchemy import Connection, Delete, Engine, Insert, Row, Select, Update
from sqlalchemy.exc import IntegrityError

from inbox_outbox_base.checks import outbox_options
from inbox_outbox_base.databases.registry import relaying
from inbox_outbox_base.databases.relaying import ALL_TOPICS
from inbox_outbox_base.databases.taking_statements import clock
from inbox_outbox_base.errors.outbox import InvalidMessage, InvalidOption, MessageNotFound, WrongState
from outbox._publishing.buckets import newest
from outbox._waking.hints import ANY, CHORES, notify
from outbox.schema import OutboxTables, tables

from . import statements
from .peek import checked_state
from .stored_message import MessageState
from .transact import transact

_READ, _WRITTEN = 10_000, 1_000
"""Dead letters that one query reads (to find the oldest, it looks at all), and one transaction revives."""
_PURGED = 500


def pause(engine: Engine, topic: str = ALL_TOPICS, *, schema: str | None = None) -> bool:
    """Stop sending the messages of a topic, or with "*" of all topics; they can still be published.

    Relays notice within a second, or when they poll if no notification reaches them, and finish their current
    batch. Messages of other topics go on, even if an earlier message of their key is paused.

    Returns:
        Whether this changed anything: False if the topic was already paused.

    Raises:
        InvalidMessage: not a topic; or a pattern such as "orders.*", which relays would take for a name.
        TablesMissing: the tables have not been created.
        UnsafeDatabase: row-level policies hide rows from this role.
    """
    all_tables = tables(schema)
    given = {"topic_": _one_or_all(topic)}
    try:
        return transact(
            engine,
            all_tables,
            lambda each: _change_pauses(each, all_tables, statements.pause(all_tables), given),
        )
    except IntegrityError:
        if not transact(engine, all_tables, lambda each: _is_paused(each, all_tables, given)):
            raise
        return False  # another operator has just paused it


def resume(engine: Engine, topic: str = ALL_TOPICS, *, schema: str | None = None) -> bool:
    """Send the messages of a topic again. "*" ends the pause of all topics; those paused by name stay paused.
    A topic's own name ends only its own pause: while all topics are paused, its messages wait.

    Returns:
        Whether it was paused.

    Raises: the errors of `pause`.
    """
    all_tables = tables(schema)
    given = {"topic_": _one_or_all(topic)}
    return transact(
        engine,
        all_tables,
        lambda each: _change_pauses(each, all_tables, statements.resume(all_tables), given),
    )


def _one_or_all(topic: str) -> str:
    checked = outbox_options.topics(topic)
    if checked != ALL_TOPICS and ALL_TOPICS in checked:
        raise InvalidMessage(f'topic={checked!r}: expected a whole topic, or "*" for all; it is no pattern')
    return checked


def _is_paused(connection: Connection, tables: OutboxTables, given: dict[str, str]) -> bool:
    return connection.execute(statements.is_paused(tables), given).first() is not None


def _change_pauses(
    connection: Connection, tables: OutboxTables, change: Insert | Delete, given: dict[str, str]
) -> bool:
    has_changed = connection.execute(change, given).rowcount == 1
    if has_changed:
        notify(connection, CHORES, tables.pause.schema)
    return has_changed


def retry(engine: Engine, message_id: str, *, schema: str | None = None) -> MessageState:
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

    def again(connection: Connection) -> MessageState:
        found = _found(connection, all_tables, message_id)
        state = MessageState(found.state)
        if state is MessageState.DEAD:
            these = {"these": [found.id]}
            if not _revive(connection, all_tables, statements.still_dead(all_tables), these):
                raise _changed(message_id)
        elif state is MessageState.HELD:
            _change(connection, statements.let_go_one(all_tables), found)
        elif state in (MessageState.WAITING, MessageState.UNKNOWN):
            _change(connection, statements.end_one_wait(all_tables), found)
        else:
            needed = "dead, held, waiting or unknown"
            raise WrongState(f"id={message_id!r}: state is {state}; this needs {needed}")
        return state

    return transact(engine, all_tables, again)


def retry_all(
    engine: Engine,
    state: MessageState | str,
    *,
    topic: str | None = None,
    key: str | None = None,
    schema: str | None = None,
) -> int:
    """`retry` all messages that are in a state now. Dead letters go in the order in which they died, those of
    a key in the order in which they were published; a thousand in a transaction.

    Args:
        engine, schema: as for `retry`.
        state: dead, held, waiting or unknown.
        topic: only messages of this topic; None is any.
        key: only messages of this key; None is any.

    Returns:
        How many there were.

    Raises:
        InvalidOption: an argument is invalid.
        TablesMissing: the tables have not been created.
        UnsafeDatabase: row-level policies hide rows from this role.
    """
    wanted = checked_state("state", state)
    all_tables = tables(schema)
    filters = {
        "topic": None if topic is None else outbox_options.topic(topic),
        "key": outbox_options.key(key),
    }
    equal = {name: value for name, value in filters.items() if value is not None}
    if wanted is MessageState.DEAD:
        return _retry_dead(engine, all_tables, equal)
    if wanted is MessageState.HELD:
        statement = statements.let_go(all_tables)
    elif wanted in (MessageState.WAITING, MessageState.UNKNOWN):
        stored = "pending" if wanted is MessageState.WAITING else "unknown"
        statement = statements.end_wait(all_tables).where(all_tables.message.c.state == stored)
    else:
        raise InvalidOption(f"state={wanted.value!r}: expected dead, held, waiting or unknown")
    chosen = statement.filter_by(**equal)
    return transact(engine, all_tables, lambda each: int(each.execute(chosen).rowcount))


def _retry_dead(engine: Engine, tables: OutboxTables, equal: dict[str, str]) -> int:
    """Retry the letters that were dead when the call began; with later ones it might never end."""
    statement = statements.dead_letters(tables).filter_by(**equal).limit(_READ)
    still = statements.still_dead(tables).where(statements.died_by(tables)).filter_by(**equal)
    until = {"until": transact(engine, tables, lambda each: each.execute(clock()).scalar_one())}
    retried = 0
    while ids := transact(engine, tables, lambda each: each.execute(statement, until).scalars().all()):
        for start in range(0, len(ids), _WRITTEN):
            some = until | {"these": ids[start : start + _WRITTEN]}
            retried += transact(engine, tables, partial(_revive, tables=tables, still=still, these=some))
    return retried


def _revive(connection: Connection, tables: OutboxTables, still: Select[Any], these: dict[str, Any]) -> int:
    """Make those letters messages again that `still` finds among these, in newly computed buckets: the
    number of buckets may have changed. Return how many there were."""
    connection.execute(statements.lock_dead(tables), these)
    # Since they were read, others may have retried or dropped some, and used their ids again.
    letters = {each.id: each for each in connection.execute(still, these)}
    mine = [letters[each] for each in these["these"] if each in letters]
    if not mine:
        return 0
    bucket_of = newest(connection, tables).bucket_of
    given = [{"id_": letter.id, "bucket_": bucket_of(letter.key or letter.id)} for letter in mine]
    connection.execute(statements.revive(tables), given)
    gone = {"these": [letter.id for letter in mine]}
    if connection.execute(statements.forget_dead(tables), gone).rowcount != len(mine):
        raise _changed(mine[0].id)
    notify(connection, ANY, tables.message.schema)
    return len(mine)


def drop(engine: Engine, message_id: str, *, schema: str | None = None) -> MessageState:
    """Delete a message in any state. The messages behind it go on.

    A message that a relay is sending cannot be dropped. One that a relay has just read may still be sent: to
    be sure, pause its topic a second before. A message in state unknown may already have arrived.

    Args, returns: as `retry`.

    Raises:
        MessageNotFound: there is no such message; it may have been sent.
        WrongState: a relay is sending it, or it was changed just now.
        InvalidOption, TablesMissing: as `retry`.
    """
    all_tables = tables(schema)

    def delete(connection: Connection) -> MessageState:
        found = _found(connection, all_tables, message_id)
        state = MessageState(found.state)
        if state in (MessageState.DEAD, MessageState.DELAYED):
            table = all_tables.dead if state is MessageState.DEAD else all_tables.delayed
            if connection.execute(statements.drop_aside(table), {"id_": message_id}).rowcount != 1:
                raise _changed(message_id)
        else:
            if _may_be_sent(connection, all_tables, found):
                state = MessageState.UNKNOWN
            _change(connection, statements.drop(all_tables), found)
        _let_go(connection, all_tables, [found])
        return state

    return transact(engine, all_tables, delete)


def _let_go(connection: Connection, tables: OutboxTables, messages: Sequence[Row[Any]]) -> None:
    """After messages were deleted: release the ids that producers chose, so that they can be used again, and
    let the audit know that it cannot count these messages."""
    database = relaying(connection.dialect.name, tables)
    database.free_ids(connection, [each.id for each in messages])
    database.note_gone(connection, {each.topic for each in messages})


def _may_be_sent(connection: Connection, tables: OutboxTables, message: Row[Any]) -> bool:
    """Whether a relay was lost while it was sending the message.

    Raises:
        WrongState: a relay is sending it.
    """
    is_lost = False
    # A relay locks its own row before it notes a batch, so it waits here and then finds the message gone.
    connection.execute(statements.lock_relays(tables))
    for relay in connection.execute(statements.relays(tables)):
        sending = json.loads(relay.sending or "{}").get(str(message.bucket), ())
        if message.sequence not in sending:
            continue
        is_lost = True
        if relay.lease_until >= relay.now:
            raise WrongState(
                f"id={message.id!r}: relay {relay.name} is sending it; "
                "pause its topic for a second, or try again"
            )
    return is_lost


def purge_dead(
    engine: Engine, older_than: float | timedelta, *, topic: str | None = None, schema: str | None = None
) -> int:
    """Delete dead letters that died longer ago than `older_than`, in seconds or as `timedelta`; some hundred
    in a transaction.

    Args:
        engine, schema: as for `retry`.
        topic: only messages of this topic; None is any.

    Returns:
        How many there were.

    Raises:
        InvalidOption: an argument is invalid.
        TablesMissing: the tables have not been created.
        UnsafeDatabase: row-level policies hide rows from this role.
    """
    all_tables = tables(schema)
    given = {"age": -outbox_options.seconds("older_than", older_than), "limit": _PURGED}
    equal = {} if topic is None else {"topic": outbox_options.topic(topic)}
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
        _let_go(connection, all_tables, mine)
        return len(mine)

    deleted = 0
    while (page := transact(engine, all_tables, delete)) is not None:  # 0: others took them first
        deleted += page
    return deleted


def _found(connection: Connection, tables: OutboxTables, message_id: str) -> Row[Any]:
    given = {"id_": outbox_options.text("message_id", message_id, 255)}
    # Dead and delayed messages have an index by id; any other may cost a scan of the whole table.
    for statement in (statements.find_aside(tables), statements.find(tables)):
        found = connection.execute(statement, given).first()
        if found is not None:
            return found
    raise MessageNotFound(f"the outbox has no message {message_id!r}; it may have been sent")


def _change(connection: Connection, statement: Update | Delete, message: Row[Any]) -> None:
    """Change a message that waits for a relay; raise `WrongState` if it has changed since it was read."""
    place = {"bucket_": message.bucket, "sequence_": message.sequence, "id_": message.id}
    if connection.execute(statement, place).rowcount != 1:
        raise _changed(message.id)


def _changed(message_id: str) -> WrongState:
    return WrongState(f"id={message_id!r}: it has just been changed; look at it again")
