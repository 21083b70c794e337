"""Take messages on any database, with one verdict for each key."""

import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from inbox._listening.counting import takes_messages
from inbox._listening.noting import Records, note_of, refuse
from inbox._memory import Known, Memory, place_of
from inbox_outbox_base.checks.keys import Key, digest, encode_key, is_mismatch
from inbox_outbox_base.checks.missing import raise_clearer
from inbox_outbox_base.databases.registry import database_of
from inbox_outbox_base.databases.taking import Attempt, KeyBatch, Stored, Taking
from inbox_outbox_base.errors.blame import AFTER_BODY, OWN, Own
from inbox_outbox_base.errors.inbox import UnusableConnection
from inbox_outbox_base.monitoring.events import Hooks
from inbox_outbox_base.tables.inbox import Tables
from inbox_outbox_base.transactions.declaring import Declaration
from inbox_outbox_base.transactions.joining import database_to_join
from inbox_outbox_base.transactions.safety import check_now_and_then
from inbox_outbox_base.words.incoming import Verdict


@dataclass(frozen=True, slots=True)
class Terms:
    """How an inbox takes every message."""

    wait: float
    """Seconds to wait for a message that is in flight."""
    policy: Declaration
    memory: Memory | None
    records: Records = "listening"
    """Which refusals to record."""
    hooks: Hooks | None = None
    """What hears of messages that are taken in the caller's transaction."""


def new_attempt(tables: Tables, consumer: str, key: Key, payload: Any, *, marks: bool = False) -> Attempt:
    """A checked attempt at taking one message, with its own claim id."""
    # A random claim: after a lost COMMIT, it tells this attempt's row from all others.
    return Attempt(tables, consumer, encode_key(key), os.urandom(16), digest(payload), marks)


def ours(connection: Connection) -> Own:
    """What to put around our statements on the caller's connection: the time of a transaction that has begun
    before was spent by the caller's code."""
    try:
        has_begun = not connection.closed and not database_of(connection).is_ended(connection)
    except BaseException as error:
        AFTER_BODY.mark(error)
        raise
    return AFTER_BODY if has_begun else OWN


def accept(
    connection: Connection,
    attempt: Attempt,
    terms: Terms,
    message_time: datetime | None,
    *,
    begins: bool = False,
) -> tuple[Verdict, Stored | None]:
    """Take one message in the transaction on this connection; for a duplicate, also return the stored row,
    and for a mismatch its digest. `begins` says that the transaction begins with this message. Call this
    function inside `ours`."""
    database = database_to_join(connection)
    memory, policy = terms.memory, terms.policy
    if memory is not None and (known := memory.recall(place_of(connection, attempt.key))) is not None:
        # Remembered rows are committed, so no claim has to be compared.
        return _judge(connection, attempt, terms, Stored(b"", known.digest, known.result))
    try:
        if message_time is not None and _is_too_old(database, connection, policy, message_time):
            # A key that is still stored keeps its verdict, however old the message is.
            found = database.find(connection, attempt)
            if found is not None:
                return _judge(connection, attempt, terms, found)
            _refuse(connection, attempt, terms, Verdict.TOO_OLD)
            return Verdict.TOO_OLD, None
        taken = _take(database, connection, attempt, terms)
    except DBAPIError as error:
        raise_clearer(connection, attempt.tables.message, error)
    if isinstance(taken, Stored) and taken.claim == attempt.claim:
        taken = True  # something has hidden the count of rows; the claim tells whose row it is
    # After the take, because an earlier read would fix what the transaction can see.
    if not policy.is_seen(connection):
        agree(connection, policy, attempt, {attempt.key} if taken is True else ())
    if taken is False:
        _refuse(connection, attempt, terms, Verdict.TOO_OLD)
        return Verdict.TOO_OLD, None
    if taken is True:
        takes_messages(attempt.consumer, (attempt.key,))
        return Verdict.NEW, None
    if memory is not None and taken is not None:
        _learn(memory, connection, attempt, taken, policy, begins=begins)
    return (Verdict.IN_FLIGHT, None) if taken is None else _judge(connection, attempt, terms, taken)


def _take(database: Taking, connection: Connection, attempt: Attempt, terms: Terms) -> bool | Stored | None:
    form = terms.policy.form
    if form is not None:
        form.check_time(attempt.key, partial(database.now, connection), "database")
    try:
        if form is None:
            return database.take(connection, attempt, terms.wait)
        sure_from = partial(terms.policy.surely_kept_from, connection, form)
        return database.take_in_range(connection, attempt, terms.wait, sure_from)
    except Exception:
        _give_back(connection, attempt, (attempt.key,))
        raise


def _learn(
    memory: Memory,
    connection: Connection,
    attempt: Attempt,
    stored: Stored,
    policy: Declaration,
    *,
    begins: bool,
) -> None:
    """Remember the row if it is committed. A transaction that begins with this message sees only committed
    rows."""
    place = place_of(connection, attempt.key)
    transaction = connection.get_transaction()
    if begins or (
        # A row written by a load has no claim to recognize it by.
        transaction is not None and stored.claim is not None and memory.see(place, stored.claim, transaction)
    ):
        memory.remember(place, Known(stored.digest, stored.result), policy.kept(connection))


def _judge(
    connection: Connection, attempt: Attempt, terms: Terms, stored: Stored
) -> tuple[Verdict, Stored | None]:
    """The verdict on a stored key; a message with another payload does not get the stored result."""
    if is_mismatch(attempt.digest, stored.digest):
        _refuse(connection, attempt, terms, Verdict.MISMATCH, stored.digest)
        return Verdict.MISMATCH, Stored(None, stored.digest, None)
    return Verdict.DUPLICATE, stored


def _refuse(
    connection: Connection, attempt: Attempt, terms: Terms, verdict: Verdict, stored: bytes | None = None
) -> None:
    refuse(terms.records, note_of(connection, attempt, verdict, stored))


@contextmanager
def giving_back(
    connection: Connection, attempt: Attempt | KeyBatch, taken: Collection[str]
) -> Iterator[None]:
    """If the body fails: the caller may catch its error and commit, and then nothing must be taken."""
    try:
        yield
    except Exception:
        _give_back(connection, attempt, taken)
        raise


def _give_back(connection: Connection, attempt: Attempt | KeyBatch, keys: Collection[str]) -> None:
    """After an error: those of these keys that were taken before it are given back. If that fails, the
    connection is closed, so that nothing commits."""
    if connection.closed or connection.invalidated:
        return
    database = database_of(connection)
    try:
        database.give_back(connection, attempt, _taken(database, connection, attempt, keys))
    except Exception as error:  # noqa: BLE001 - the first error is raised
        if not (database.aborts and isinstance(error, SQLAlchemyError)):
            connection.invalidate(error)


def _taken(
    database: Taking, connection: Connection, attempt: Attempt | KeyBatch, keys: Collection[str]
) -> Collection[str]:
    """Those of the keys whose row is this attempt's. A DELETE would wait for the row of somebody else."""
    batch = KeyBatch(attempt.tables, attempt.consumer, attempt.claim, sorted(keys))
    try:
        found = database.find_many(connection, batch)
    except UnusableConnection:  # it shows rows that are not committed; their claims tell whose they are
        found = Taking.find_many(database, connection, batch)
    return {key for key in found if found[key].claim == attempt.claim}


def agree(
    connection: Connection, policy: Declaration, attempt: Attempt | KeyBatch, taken: Collection[str]
) -> None:
    """After the first message, look at the table and compare the policies; on a conflict, give back the keys
    just taken."""
    with giving_back(connection, attempt, taken):
        check_now_and_then(connection, policy.needed)
        policy.agree(connection, is_new=bool(taken))


def _is_too_old(
    database: Taking, connection: Connection, policy: Declaration, message_time: datetime
) -> bool:
    return bool(too_old(database, connection, policy, [message_time]))


def too_old(
    database: Taking,
    connection: Connection,
    policy: Declaration,
    times: Sequence[datetime | None] | None,
) -> set[int]:
    """The indexes of messages that are too old by the database's clock; the database is asked once, if the
    worker's clock is near the limit. By a policy that was not looked at for long, nothing is too old.

    Raises:
        PolicyConflict: some are, but this inbox must not take any message.
    """
    if times is None:
        return set()
    retention = policy.retention(connection)
    doubtful = [
        (index, each)
        for index, each in enumerate(times)
        if each is not None and not retention.surely_covers(each)
    ]
    if not doubtful:
        return set()
    horizon = database.now(connection) - retention.duration
    old = {index for index, each in doubtful if each < horizon}
    if old and policy.confirmed(connection) != retention:
        return too_old(database, connection, policy, times)
    return old
