"""What a person does about messages of the outbox: pause them, send them again, or drop them.

Every function is short transactions of its own, safe beside running relays: each write asks whether the
message is still where it was seen.
"""

import json
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any

from sqlalchemy import Connection, Delete, Engine, Row, Update
from sqlalchemy.exc import IntegrityError

from inbox_outbox_base.checks import outbox_options
from inbox_outbox_base.databases import relaying_statements
from inbox_outbox_base.databases.registry import relaying
from inbox_outbox_base.databases.taking_statements import clock
from inbox_outbox_base.errors.outbox import InvalidOption, MessageNotFound, WrongState
from outbox._publishing.buckets import bucket_of
from outbox.schema import OutboxTables, tables

from . import statements
from .peek import checked_state
from .stored_message import MessageState
from .transact import transact

ALL_TOPICS = "*"

_READ, _WRITTEN = 10_000, 1_000
"""Dead letters that are read at once, and sent again in one transaction: to find the oldest takes a look at
all."""
_PURGED = 500


def pause(engine: Engine, topic: str = ALL_TOPICS, *, schema: str | None = None) -> bool:
    """Let the messages of a topic wait, or with "*" all; they can be published as before.

    Relays hear of it within a second, and finish the batch that is on its way. Messages of other topics go
    on, also those behind a paused one of the same key.

    Returns:
        Whether it was not paused before.

    Raises:
        InvalidMessage: not a topic.
        TablesMissing: the tables have not been made.
    """
    all_tables = tables(schema)
    given = {"topic_": outbox_options.topic(topic)}
    try:
        return transact(
            engine, all_tables, lambda each: each.execute(statements.pause(all_tables), given).rowcount == 1
        )
    except IntegrityError:  # somebody else has just done it
        return False


def resume(engine: Engine, topic: str = ALL_TOPICS, *, schema: str | None = None) -> bool:
    """Let the messages of a topic leave again. "*" ends the pause of all; topics that were paused by their
    names stay so.

    Returns:
        Whether it was paused.

    Raises: as `pause`.
    """
    all_tables = tables(schema)
    given = {"topic_": outbox_options.topic(topic)}
    return transact(
        engine, all_tables, lambda each: each.execute(statements.resume(all_tables), given).rowcount == 1
    )


def retry(engine: Engine, message_id: str, *, schema: str | None = None) -> MessageState:
    """Let a message be sent again, with its id.

    - dead: it goes to the end of its bucket, behind whatever its key has published since, and its attempts
      are counted anew.
    - held: it keeps its place, and its attempts are counted anew. Relays find out within five seconds.
    - waiting or unknown: it is sent at once, which is within five seconds, and its attempts go on being
      counted. If a relay is sending it just now, what comes of that decides.

    Args:
        engine: where the outbox is; an Engine.
        message_id: what `Outbox.publish` returned. Of messages that are neither dead nor delayed there is no
            index by id: the whole outbox may be read to find one.
        schema: the PostgreSQL schema of the tables.

    Returns:
        The state in which it was.

    Raises:
        MessageNotFound: there is no such message; it may have left.
        WrongState: it is pending or delayed, or somebody has changed it just now.
        InvalidOption: an argument cannot be used.
        TablesMissing: the tables have not been made.
    """
    all_tables = tables(schema)

    def again(connection: Connection) -> MessageState:
        found = _found(connection, all_tables, message_id)
        state = MessageState(found.state)
        if state is MessageState.DEAD:
            _revive(connection, all_tables, [found])
        elif state is MessageState.HELD:
            _change(connection, statements.let_go_one(all_tables), found)
        elif state in (MessageState.WAITING, MessageState.UNKNOWN):
            _change(connection, statements.end_one_wait(all_tables), found)
        else:
            raise WrongState(f"id={message_id!r}: it is {state}, expected dead, held, waiting or unknown")
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
    """`retry` for all messages that are in a state now; dead letters in the order in which they died, which
    for those of one key is the order in which they were published, a thousand in a transaction.

    Args:
        engine, schema: as for `retry`.
        state: dead, held, waiting or unknown.
        topic: of which topic; None is any.
        key: of which key; None is any.

    Returns:
        How many there were.

    Raises:
        InvalidOption: an argument cannot be used.
        TablesMissing: the tables have not been made.
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
    """Not those that die again meanwhile, which could go on for ever."""
    statement = statements.dead_letters(tables).filter_by(**equal).limit(_READ)
    until = {"until": transact(engine, tables, lambda each: each.execute(clock()).scalar_one())}
    retried = 0
    while letters := transact(engine, tables, lambda each: each.execute(statement, until).all()):
        for start in range(0, len(letters), _WRITTEN):
            some = letters[start : start + _WRITTEN]
            retried += transact(engine, tables, partial(_revive_those_left, tables=tables, letters=some))
    return retried


def _revive_those_left(connection: Connection, tables: OutboxTables, letters: Sequence[Row[Any]]) -> int:
    these = {"these": [letter.id for letter in letters]}
    connection.execute(statements.lock_dead(tables), these)
    left = set(connection.execute(statements.still_dead(tables), these).scalars())
    mine = [letter for letter in letters if letter.id in left]
    if mine:
        _revive(connection, tables, mine)
    return len(mine)


def _revive(connection: Connection, tables: OutboxTables, letters: Sequence[Row[Any]]) -> None:
    """Their bucket is asked for anew: there may be more buckets by now."""
    buckets = connection.execute(relaying_statements.count_buckets(tables)).scalar_one()
    given = [{"id_": letter.id, "bucket_": bucket_of(letter.key or letter.id, buckets)} for letter in letters]
    connection.execute(statements.revive(tables), given)
    these = {"these": [letter.id for letter in letters]}
    if connection.execute(statements.forget_dead(tables), these).rowcount != len(letters):
        raise _changed(letters[0].id)


def drop(engine: Engine, message_id: str, *, schema: str | None = None) -> MessageState:
    """Delete a message, in whatever state it is. The messages behind it go on.

    One that a relay is sending is refused; but one that a relay has read in this very moment, to send it
    next, may leave all the same. To be sure, pause its topic a second before. One that is unknown may have
    left long ago.

    Args, returns: as `retry`.

    Raises:
        MessageNotFound: there is no such message; it may have left.
        WrongState: a relay is sending it, or somebody has changed it just now.
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
            _check_not_sending(connection, all_tables, found)
            _change(connection, statements.drop(all_tables), found)
        _free(connection, all_tables, [found.id])
        return state

    return transact(engine, all_tables, delete)


def _free(connection: Connection, tables: OutboxTables, ids: Sequence[str]) -> None:
    """Producers may use these ids again, if they were their own."""
    relaying(connection.dialect.name).free_ids(connection, tables, ids)


def _check_not_sending(connection: Connection, tables: OutboxTables, message: Row[Any]) -> None:
    connection.execute(statements.lock_relays(tables))
    for relay in connection.execute(statements.relays(tables)):
        sending = json.loads(relay.sending or "{}").get(str(message.bucket), ())
        if relay.lease_until >= relay.now and message.sequence in sending:
            raise WrongState(
                f"id={message.id!r}: relay {relay.name} is sending it; "
                "pause its topic for a second, or try again"
            )


def purge_dead(
    engine: Engine, older_than: float | timedelta, *, topic: str | None = None, schema: str | None = None
) -> int:
    """Delete dead letters that died longer ago than that, in seconds or as `timedelta`; some hundred in a
    transaction.

    Args:
        engine, schema: as for `retry`.
        topic: of which topic; None is any.

    Returns:
        How many there were.

    Raises:
        InvalidOption: an argument cannot be used.
        TablesMissing: the tables have not been made.
    """
    all_tables = tables(schema)
    given = {"age": -outbox_options.seconds("older_than", older_than), "limit": _PURGED}
    old = statements.old_dead(all_tables)
    if topic is not None:
        old = old.where(all_tables.dead.c.topic == outbox_options.topic(topic))

    def delete(connection: Connection) -> int | None:
        these = {"these": list(connection.execute(old, given).scalars())}
        if not these["these"]:
            return None
        # Those that somebody sends again meanwhile keep their ids.
        connection.execute(statements.lock_dead(all_tables), these)
        mine = list(connection.execute(statements.still_dead(all_tables), these).scalars())
        connection.execute(statements.forget_dead(all_tables), {"these": mine})
        _free(connection, all_tables, mine)
        return len(mine)

    deleted = 0
    while (page := transact(engine, all_tables, delete)) is not None:  # 0: others had them
        deleted += page
    return deleted


def _found(connection: Connection, tables: OutboxTables, message_id: str) -> Row[Any]:
    given = {"id_": outbox_options.text("message_id", message_id, 255)}
    for statement in (statements.find_aside(tables), statements.find(tables)):
        found = connection.execute(statement, given).first()
        if found is not None:
            return found
    raise MessageNotFound(f"the outbox has no message {message_id!r}; it may have left")


def _change(connection: Connection, statement: Update | Delete, message: Row[Any]) -> None:
    """Change a message that waits for a relay, if it is still there."""
    place = {"bucket_": message.bucket, "sequence_": message.sequence}
    if connection.execute(statement, place).rowcount != 1:
        raise _changed(message.id)


def _changed(message_id: str) -> WrongState:
    return WrongState(f"id={message_id!r}: somebody has changed it just now, look at it again")
