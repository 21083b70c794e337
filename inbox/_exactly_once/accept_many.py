"""Take many messages on any database, with one verdict for each key."""

import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from inbox._listening.counting import takes_messages
from inbox._listening.noting import note_of, refuse
from inbox_outbox_base.checks.keys import is_mismatch
from inbox_outbox_base.checks.missing import raise_clearer
from inbox_outbox_base.databases.key_range import KeyRange
from inbox_outbox_base.databases.taking import Attempt, KeyBatch, KeyRow, Taking
from inbox_outbox_base.tables.inbox import Tables
from inbox_outbox_base.transactions.joining import database_to_join
from inbox_outbox_base.words.incoming import Verdict

from .accept import Terms, agree, giving_back, ours, too_old

_LARGEST_STATEMENT = 5_000
"""The most keys in one statement: databases limit a statement's parameters."""

_YOUNG = 30.0
"""Seconds after which it is judged again whether messages are too old: a row outlives its retention by a
minute only, and another delivery's row may have been purged while a batch waited."""

_HALVING = 5.0
"""Seconds, after the wait, to find out which keys of a batch are in flight. Then all keys that are left count
as in flight, which is always safe. (MySQL waits a whole second for each key.)"""


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
            old = too_old(database, connection, policy, messages.times)
            fresh, digests = messages.to_take(old)
            # Text sorts by code point, which is the byte order of its UTF-8.
            in_range = policy.form is not None
            batch = KeyBatch(tables, consumer, os.urandom(16), sorted(fresh), digests, in_range)
            with giving_back(connection, batch, fresh):
                taken, known = _take_parts(database, connection, batch, time.monotonic() + terms.wait)
                # As in `accept`: a key that is stored keeps its verdict, however old the message is.
                if others := sorted({messages.keys[index] for index in old} - fresh):
                    known |= database.find_many(connection, replace(batch, keys=others))
                if time.monotonic() - began > _YOUNG:
                    old |= too_old(database, connection, policy, messages.times)
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
            agree(connection, policy, batch, taken)
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
