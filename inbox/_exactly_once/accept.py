"""Take messages on any database, with one verdict for each key."""

import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
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
from inbox_outbox_base.databases.key_range import KeyRange
from inbox_outbox_base.databases.registry import database_of
from inbox_outbox_base.databases.taking import Attempt, KeyBatch, KeyRow, Stored, Taking
from inbox_outbox_base.errors.blame import AFTER_BODY, OWN, Own
from inbox_outbox_base.errors.inbox import UnusableConnection
from inbox_outbox_base.monitoring.events import Hooks
from inbox_outbox_base.tables.inbox import Tables
from inbox_outbox_base.transactions.declaring import Declaration
from inbox_outbox_base.transactions.joining import database_to_join
from inbox_outbox_base.transactions.safety import check_now_and_then
from inbox_outbox_base.words.incoming import Verdict

_LARGEST_STATEMENT = 5_000
"""The most keys in one statement: databases limit a statement's parameters."""

_YOUNG = 30.0
"""Seconds after which it is judged again whether messages are too old: a row outlives its retention by a
minute only, and another delivery's row may have been purged while a batch waited."""

_HALVING = 5.0
"""Seconds, after the wait, to find out which keys of a batch are in flight. Then all keys that are left count
as in flight, which is always safe. (MySQL waits a whole second for each key.)"""


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


@dataclass(frozen=True, slots=True)
class Messages:
    """Many messages to take: digest i and time i belong to key i."""

    keys: Sequence[str]
    digests: Sequence[bytes | None] | None
    times: Sequence[datetime | None] | None

    def to_take(self, old: set[int]) -> tuple[set[str], dict[str, bytes | None] | None]:
        """The keys that are not too old, and the digest of each key's first message."""
        if self.digests is None and not old:
            return set(self.keys), None
        fresh: dict[str, bytes | None] = {}
        for index, key in enumerate(self.keys):
            if index not in old:
                fresh.setdefault(key, None if self.digests is None else self.digests[index])
        return set(fresh), None if self.digests is None else fresh


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
        _agree(connection, policy, attempt, {attempt.key} if taken is True else ())
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
def _giving_back(
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


def _agree(
    connection: Connection, policy: Declaration, attempt: Attempt | KeyBatch, taken: Collection[str]
) -> None:
    """After the first message, look at the table and compare the policies; on a conflict, give back the keys
    just taken."""
    with _giving_back(connection, attempt, taken):
        check_now_and_then(connection, policy.needed)
        policy.agree(connection, is_new=bool(taken))


def _is_too_old(
    database: Taking, connection: Connection, policy: Declaration, message_time: datetime
) -> bool:
    return bool(_too_old(database, connection, policy, [message_time]))


def accept_many(
    connection: Connection,
    tables: Tables,
    consumer: str,
    messages: Messages,
    terms: Terms,
) -> tuple[list[Verdict], bytes]:
    """Take many messages in the transaction on this connection; verdict i belongs to message i. Also returns
    the claim of the rows that were written."""
    if not messages.keys:
        return [], b""
    policy = terms.policy
    began = time.monotonic()
    with ours(connection):
        database = database_to_join(connection)
        try:
            if policy.form is not None:
                policy.form.check_time(max(messages.keys), partial(database.now, connection), "database")
            old = _too_old(database, connection, policy, messages.times)
            fresh, digests = messages.to_take(old)
            # Text sorts by code point, which is the byte order of its UTF-8.
            in_range = policy.form is not None
            batch = KeyBatch(tables, consumer, os.urandom(16), sorted(fresh), digests, in_range)
            with _giving_back(connection, batch, fresh):
                taken, known = _take_parts(database, connection, batch, time.monotonic() + terms.wait)
                # As in `accept`: a key that is stored keeps its verdict, however old the message is.
                if others := sorted({messages.keys[index] for index in old} - fresh):
                    known |= database.find_many(connection, replace(batch, keys=others))
                if time.monotonic() - began > _YOUNG:
                    old |= _too_old(database, connection, policy, messages.times)
                    left, _ = messages.to_take(old)
                    database.give_back(connection, batch, taken - left)
                    taken &= left
                if policy.form is not None:
                    sure_from = partial(policy.surely_kept_from, connection, policy.form)
                    its_range = database.key_range(connection, batch, batch.keys[0], sure_from)
                    _give_back_outside(database, connection, batch, its_range, taken, known)
                    old = {
                        index
                        for index, key in enumerate(messages.keys)
                        if key < its_range.first and key not in taken
                    }
        except DBAPIError as error:
            raise_clearer(connection, tables.message, error)
        if not policy.is_seen(connection):
            _agree(connection, policy, batch, taken)
    if taken:
        takes_messages(consumer, taken)

    def refused(key: str, verdict: Verdict, digest: bytes | None, stored: bytes | None = None) -> Verdict:
        attempt = Attempt(tables, consumer, key, batch.claim, digest)
        refuse(terms.records, note_of(connection, attempt, verdict, stored))
        return verdict

    return list(_verdicts(messages, old, taken, known, refused)), batch.claim


def _give_back_outside(
    database: Taking,
    connection: Connection,
    batch: KeyBatch,
    its_range: KeyRange,
    taken: set[str],
    known: Collection[str],
) -> None:
    """Of keys that name their time, give back those that were forgotten before, unless the INSERT has left
    them out.

    Raises:
        TransientError: there is no partition for the last key yet.
    """
    last = batch.keys[-1]
    if last not in taken and last not in known:
        its_range.check(last)
    if not database.inserts_in_range:
        forgotten = {key for key in taken if key < its_range.first}
        database.give_back(connection, batch, forgotten)
        taken -= forgotten


def _too_old(
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
        return _too_old(database, connection, policy, times)
    return old


def _take_parts(
    database: Taking, connection: Connection, batch: KeyBatch, deadline: float
) -> tuple[set[str], dict[str, KeyRow]]:
    """The keys that this call took, and the rows of keys taken before."""
    taken: set[str] = set()
    known: dict[str, KeyRow] = {}
    for start in range(0, len(batch.keys), _LARGEST_STATEMENT):
        part = replace(batch, keys=batch.keys[start : start + _LARGEST_STATEMENT])
        taken |= _take_all(database, connection, part, deadline)
        left = [key for key in part.keys if key not in taken]
        known |= database.find_many(connection, replace(batch, keys=left)) if left else {}
    return taken, known


def _take_all(database: Taking, connection: Connection, batch: KeyBatch, deadline: float) -> set[str]:
    """The keys that this call took. When the wait runs out, halve the batch until only the keys in flight are
    missing: only these few cost extra statements."""
    taken = database.take_many(connection, batch, max(0.0, deadline - time.monotonic()))
    if taken is not None:
        return taken
    # If one writer locks the whole file, half a batch waits as long as all of it.
    if len(batch.keys) == 1 or not database.locks_rows or time.monotonic() > deadline + _HALVING:
        return set()
    half = len(batch.keys) // 2
    parts = batch.keys[:half], batch.keys[half:]
    return set().union(
        *(_take_all(database, connection, replace(batch, keys=part), deadline) for part in parts)
    )


def _verdicts(
    messages: Messages,
    old: set[int],
    taken: set[str],
    known: dict[str, KeyRow],
    refused: Callable[..., Verdict],
) -> Iterator[Verdict]:
    stored = {key: row.digest for key, row in known.items()}
    for index, key in enumerate(messages.keys):
        digest = None if messages.digests is None else messages.digests[index]
        if key in stored and is_mismatch(digest, stored[key]):
            yield refused(key, Verdict.MISMATCH, digest, stored[key])
        elif key in stored:
            yield Verdict.DUPLICATE
        elif index in old:
            yield refused(key, Verdict.TOO_OLD, digest)
        elif key in taken:
            # The same key again in this batch is a duplicate of this message.
            stored[key] = digest
            yield Verdict.NEW
        else:
            yield Verdict.IN_FLIGHT
