"""PostgreSQL: an INSERT that meets an uncommitted row waits without limit, and a lock timeout aborts the
whole transaction. So the first statement asks for an advisory lock on the key, and inserts only if it gets
the lock; otherwise a patient statement runs inside a savepoint with its own lock timeout.

Batches do not lock each key, because all databases of the server share one lock table. They announce
themselves with one shared lock per consumer, and single messages use the patient statement meanwhile.
"""

import json
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, NamedTuple

from sqlalchemy import Connection, select, text
from sqlalchemy.exc import DBAPIError

from inbox_outbox_base.databases.as_text import execute
from inbox_outbox_base.databases.key_range import KeyRange
from inbox_outbox_base.databases.taking import (
    Attempt,
    KeyBatch,
    KeyRow,
    State,
    Stored,
    Taking,
    pooled,
)
from inbox_outbox_base.databases.taking_statements import Aging
from inbox_outbox_base.errors import codes
from inbox_outbox_base.tables.inbox import Tables

from .drivers.driver import check_known, driver_behind, wrapped
from .taking_statements import (
    MARK,
    add_at_once,
    add_in_order,
    begin_purge,
    delete_batch,
    delete_loads,
    find_loads,
    find_many,
    key_range,
    try_horizon,
    wait_for_key,
)

_MARK = select(MARK)
_ROLE = text("SELECT current_user")
_LOCAL = text("SELECT current_setting('search_path'), current_user")
_HAS_WRITTEN = text("SELECT pg_current_xact_id_if_assigned() IS NOT NULL")
_WRITES = text("SELECT pg_logical_emit_message(true, 'inbox-outbox', '')")
"""Makes a COMMIT wait for a synchronous standby, which then has all earlier commits as well."""
_RISKS = text("""
    SELECT name || '=' || setting FROM pg_settings
    WHERE name IN ('fsync', 'full_page_writes', 'synchronous_commit') AND setting = 'off'
       OR name = 'synchronous_commit' AND setting = 'local'
          AND current_setting('synchronous_standby_names') <> ''
    ORDER BY name
""")
_NO_TIME_LIMIT = text("SET LOCAL statement_timeout = 0")
_BLOCKS = 1_000
"""The most blocks of the table that a batch of a load reads: this takes a few milliseconds."""


class PostgreSQLTaking(Taking):
    """Advisory locks distinguish "in flight" from "taken"; a savepoint limits the wait."""

    aborts = True
    inserts_in_range = True

    def take(self, connection: Connection, attempt: Attempt, wait: float) -> Literal[True] | Stored | None:
        added = execute(connection, add_at_once(attempt.tables, marks=attempt.marks), attempt.row())
        if added.rowcount == 1:
            return True
        # Neither added nor there: the key, or a batch of its consumer, is in flight.
        return self.find(connection, attempt) or self._take_in_turn(connection, attempt, wait)

    def _take_in_turn(
        self, connection: Connection, attempt: Attempt, wait: float, *, in_range: bool = False
    ) -> Literal[True] | Stored | None:
        if self._take_patiently(connection, attempt, "key", [attempt.key], wait, in_range=in_range):
            if attempt.marks:
                connection.execute(_MARK)
            return True
        # The row is there if the other transaction has committed; not if the wait ran out.
        return self.find(connection, attempt)

    def take_in_range(
        self, connection: Connection, attempt: Attempt, wait: float, sure_from: Callable[[], str]
    ) -> bool | Stored | None:
        statement = add_at_once(attempt.tables, marks=attempt.marks, in_range=True)
        if execute(connection, statement, attempt.row()).rowcount == 1:
            return True
        stored = self.find(connection, attempt)
        if stored is not None:
            return stored
        its_range = self.key_range(connection, attempt, attempt.key, sure_from)
        if attempt.key < its_range.first:
            return False
        its_range.check(attempt.key)
        taken = self._take_in_turn(connection, attempt, wait, in_range=True)
        if taken is None and attempt.key < self.key_range(connection, attempt, attempt.key, sure_from).first:
            return False
        return taken

    def key_range(
        self,
        connection: Connection,
        of: Attempt | KeyBatch,
        lowest: str = "",
        sure_from: Callable[[], str] | None = None,
    ) -> KeyRange:
        parameters = {"consumer": of.consumer}
        is_newest, first, until = connection.execute(key_range(of.tables), parameters).one()
        if not is_newest:
            # The INSERT of a row that a later commit has changed is an error, as a duplicate's would be.
            with connection.begin_nested() as savepoint:
                connection.execute(try_horizon(of.tables), parameters)
                savepoint.rollback()
        return KeyRange(first or "", until)

    def take_many(self, connection: Connection, batch: KeyBatch, wait: float) -> set[str] | None:
        prototype = Attempt(batch.tables, batch.consumer, "", batch.claim, None)
        keys: Sequence[object] = batch.keys
        if batch.digests is not None:
            keys = [
                (key, digest and digest.hex()) for key in batch.keys for digest in [batch.digests.get(key)]
            ]
        with_digests, in_range = batch.digests is not None, batch.in_range
        return self._take_patiently(
            connection, prototype, "batch", keys, wait, with_digests=with_digests, in_range=in_range
        )

    def _take_patiently(
        self,
        connection: Connection,
        attempt: Attempt,
        lock: Literal["key", "batch"],
        keys: Sequence[object],
        wait: float,
        *,
        with_digests: bool = False,
        in_range: bool = False,
    ) -> set[str] | None:
        """The keys that are ours now; None if the wait ran out."""
        parameters = attempt.row() | {"keys": _as_json(keys), "timeout": _milliseconds(wait)}
        statement = add_in_order(attempt.tables, lock, with_digests=with_digests, in_range=in_range)
        while True:
            try:
                # A lock timeout aborts all since the last savepoint: the caller's work must survive it.
                with connection.begin_nested() as savepoint:
                    taken = set(connection.execute(statement, parameters).scalar_one() or ())
                    # During the wait, or since the snapshot of a REPEATABLE READ, a purge may have forgotten
                    # some. What it had deleted before the INSERT is below the first key now.
                    if not (in_range and taken and min(taken) < self.key_range(connection, attempt).first):
                        return taken
                    savepoint.rollback()
            except DBAPIError as error:
                if not codes.ends_wait(error):
                    raise
                return None

    def find_many(self, connection: Connection, batch: KeyBatch) -> dict[str, KeyRow]:
        parameters = batch.where() | {"keys": _as_json(batch.keys)}
        if batch.in_range:
            parameters |= {"first": batch.keys[0], "last": batch.keys[-1]}
        rows = connection.execute(find_many(batch.tables, in_range=batch.in_range), parameters)
        return {key: KeyRow(claim, digest) for key, claim, digest in rows}

    def settled(self, connection: Connection, attempt: Attempt, wait: float) -> Stored | None:
        names = {"consumer": attempt.consumer, "key": attempt.key, "timeout": _milliseconds(wait)}
        # With a time limit of the role, the outcome of the COMMIT could stay unknown.
        connection.execute(_NO_TIME_LIMIT)
        connection.execute(wait_for_key(attempt.tables), names)
        found = self.find(connection, attempt)
        if found is not None:
            # A synchronous standby may not have this row yet: the COMMIT of a write waits for it.
            connection.execute(_WRITES)
        return found

    def delete_oldest(self, connection: Connection, aging: Aging, parameters: dict[str, Any]) -> list[Any]:
        has_partitions = connection.execute(begin_purge(aging.table)).scalar_one()
        statement = delete_batch(aging, has_partitions=has_partitions)
        return list(connection.execute(statement, parameters).scalars())

    def delete_loads(
        self, connection: Connection, tables: Tables, parameters: dict[str, Any], after: Any
    ) -> tuple[int, Any]:
        if after is None:
            found = connection.execute(find_loads(tables), parameters).all()
            after = [_Stretch(partition, first, _block(last)) for partition, first, last in found]
            if not after:
                return 0, None
        (partition, first, last), *others = after
        until = _block(first) + _BLOCKS
        connection.execute(begin_purge(tables.message))
        window = parameters | {"partition": partition, "first": first, "until": f"({until},0)"}
        deleted, end = connection.execute(delete_loads(tables), window).one()
        if deleted == parameters["batch"]:
            return deleted, [_Stretch(partition, end, last), *others]
        if until <= last:
            return deleted, [_Stretch(partition, f"({until},0)", last), *others]
        return deleted, others or None

    def risks(self, connection: Connection) -> list[str]:
        return list(connection.scalars(_RISKS))

    def unusable_setting(self, driver: Any) -> str | None:
        return wrapped(driver).unusable()

    def is_autocommit(self, connection: Connection) -> bool:
        check_known(connection)
        driver: Any = pooled(connection).dbapi_connection  # what SQLAlchemy makes of an asynchronous one
        return bool(driver.autocommit)

    def protected(self, connection: Connection) -> AbstractContextManager[object]:
        return nullcontext() if self.is_autocommit(connection) else connection.begin_nested()

    def cancel(self, driver: Any) -> None:
        # The server process would wait for a table's lock even without the connection.
        wrapped(driver).end_wait()

    def socket_of(self, driver: Any) -> int:
        return wrapped(driver).socket()

    def is_aborted(self, connection: Connection) -> bool:
        return self.state(connection).is_aborted()

    def state(self, connection: Connection) -> State:
        return driver_behind(connection).state(self, connection)

    def place(self, connection: Connection) -> Hashable:
        return driver_behind(connection).place()

    def role(self, connection: Connection) -> Hashable:
        role: str = connection.execute(_ROLE).scalar_one()
        return role

    def local_settings(self, connection: Connection) -> Hashable:
        return tuple(connection.execute(_LOCAL).one())

    def is_ended(self, connection: Connection) -> bool:
        return driver_behind(connection).is_ended()

    def may_have_written(self, connection: Connection) -> bool:
        return not self.is_ended(connection) and bool(connection.execute(_HAS_WRITTEN).scalar_one())


class _Stretch(NamedTuple):
    """The part of a partition that may still have rows of the loads; a table has one partition."""

    partition: int
    first: str
    last: int


def _block(place: str) -> int:
    return int(place[1:].partition(",")[0])


def _milliseconds(wait: float) -> str:
    """At least one: in PostgreSQL a lock timeout of 0 means no limit."""
    return str(max(1, round(wait * 1000)))


def _as_json(keys: Sequence[object]) -> str:
    return json.dumps(keys, ensure_ascii=False)
