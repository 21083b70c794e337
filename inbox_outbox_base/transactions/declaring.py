"""How an inbox declares its consumer's policy with the first message that it takes.

The policy is stored in that message's transaction: if and only if the message is. Nobody waits: each
declaration is a row with its own id, and of a consumer's rows, the longest times count. A process that has
seen the row asks once a minute whether it is still there: the database may have gone back to an earlier
state, or its tables may have been made anew.
"""

import logging
import time
import weakref
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Table, Transaction
from sqlalchemy.exc import DBAPIError

from inbox_outbox_base.checks.key_times import FORMS, KeyForm, KeyTime
from inbox_outbox_base.checks.keys import DIGEST_FORMAT
from inbox_outbox_base.checks.missing import raise_clearer
from inbox_outbox_base.checks.retention import SKEW, Retention
from inbox_outbox_base.databases import taking_statements
from inbox_outbox_base.databases.registry import database_of
from inbox_outbox_base.errors import codes
from inbox_outbox_base.errors.inbox import PolicyConflict, TransientError
from inbox_outbox_base.tables.inbox import Tables

from . import memories
from .memories import Memories, tenant_of
from .policy import DEAD_RETENTION, Mode, Policy, brief, look, row, times

_COLUMNS = {
    "retention": "retention",
    "margin": "the retention's producer and network",
    "dead_retention": "dead_retention",
}
"""The columns that hold times, with the callers' names for them."""

_log = logging.getLogger("inbox.policy")


@dataclass(slots=True)
class _Memo:
    """This process's knowledge of one database."""

    known: dict[Any, Retention] = field(default_factory=dict)
    """By declaration: how long its keys are kept, once the database has agreed."""
    shortest: dict[Any, timedelta] = field(default_factory=dict)
    """The same as purges see it: an operator may have made it shorter."""
    lowest: dict[Any, str] = field(default_factory=dict)
    """Of consumers whose keys name their time, the lowest key that is taken: it stays where it is if an
    operator makes the time longer."""
    seen: dict[Any, float] = field(default_factory=dict)
    """By declaration, when the database was last asked."""
    declared: dict[Any, "tuple[weakref.ref[Transaction], weakref.ref[Transaction]]"] = field(
        default_factory=dict
    )
    """The transaction and savepoint in which a declaration was stored, and the last one of each consumer: it
    may still be rolled back."""

    def is_under_way(self, place: Any) -> bool:
        return place in self.declared and _is_active(self.declared[place][0]())

    def is_declared_in(self, place: Any, transaction: Transaction | None) -> bool:
        return self.is_under_way(place) and self.declared[place][0]() is transaction

    def is_certain_in(self, place: Any, transaction: Transaction | None) -> bool:
        """Whether the declaration commits with this transaction. That is not certain if its savepoint is
        over, which may have been rolled back."""
        return self.is_declared_in(place, transaction) and _is_active(self.declared[place][1]())

    def declare_in(self, place: Any, transaction: Transaction, innermost: Transaction) -> None:
        # Weak: a transaction that is gone is not active either.
        self.declared[place] = weakref.ref(transaction), weakref.ref(innermost)


def _is_active(transaction: Transaction | None) -> bool:
    return transaction is not None and transaction.is_active


_memos: Memories[_Memo] = Memories(_Memo, lambda memo: memo.seen.clear())


def _keys_of(tables: Tables, mode: Mode) -> Table:
    """The table with the keys of a mode's consumers."""
    return tables.status if mode == "status" else tables.message


def check_keys(connection: Connection, tables: Tables, consumer: str, mode: Mode, form: KeyForm) -> None:
    """Check that a consumer of which no policy is stored has taken no keys of another form.

    Raises:
        PolicyConflict: it has.
    """
    ends = taking_statements.key_ends(_keys_of(tables, mode))
    for key in connection.execute(ends, {"consumer_": consumer}).one():
        if key is not None and not form.is_key(key):
            raise PolicyConflict(
                f"consumer={consumer!r}: key_time={form.name!r}, but it has taken {key!r}, which is not "
                f"{form.expected}: give the consumer another name"
            )


class Declaration:
    """An inbox's requested policy; None requests the stored value, or the default if there is none.

    Times are stored in whole seconds, rounded up.
    """

    def __init__(
        self,
        tables: Tables,
        consumer: str,
        mode: Mode,
        retention: Retention | float | timedelta | None,
        dead_retention: float | None = None,
        key_time: KeyTime | None = None,
    ) -> None:
        self._tables = tables
        self._consumer = consumer
        self._mode = mode
        self.asked = None if retention is None else Retention.of(retention)
        self._seconds = times(self.asked, dead_retention)
        self.form = None if key_time is None else FORMS[key_time]
        self._key_time = key_time
        self._key = (tables.message.schema, consumer, mode, key_time, *self._seconds.values())

    @property
    def needed(self) -> list[Table]:
        """The tables that a message's transaction depends on."""
        keys = _keys_of(self._tables, self._mode)
        return [keys] if self.form is None else [keys, self._tables.horizon]

    def is_seen(self, connection: Connection) -> bool:
        """Whether this process has seen the stored policy within the last minute, and no connection has
        broken since. If not, call `agree`."""
        seen = _memos.of(connection.engine.pool).seen.get(self._place(connection))
        return seen is not None and time.monotonic() - seen < memories.BELIEVED

    def _known(self, connection: Connection) -> Retention | None:
        return _memos.of(connection.engine.pool).known.get(self._place(connection))

    def retention(self, connection: Connection) -> Retention:
        """How long keys are kept.

        Raises as `agree`.
        """
        if self.asked is not None:
            return self.asked
        return self._known(connection) or self.agree(connection, is_new=False)

    def surely_kept_from(self, connection: Connection, form: KeyForm) -> str:
        """By this machine's clock, a key of which, and of all later ones, no purge has deleted any. Sends
        nothing: if the stored policy was not seen lately, nothing is sure."""
        memo, place = _memos.of(connection.engine.pool), self._place(connection)
        if place not in memo.shortest or not self.is_seen(connection):
            return form.since(datetime.max.replace(tzinfo=UTC))
        since = datetime.now(UTC) - memo.shortest[place] + SKEW
        return max(form.since(since), memo.lowest.get(place, ""))

    def confirmed(self, connection: Connection) -> Retention:
        """The same, compared with the stored policy unless this process has just done so.

        Raises as `agree`.
        """
        return (
            self.retention(connection) if self.is_seen(connection) else self.agree(connection, is_new=False)
        )

    def kept(self, connection: Connection) -> float:
        """In seconds: the requested time, else the known or the default one. A query is sent only for the
        role, if that decides."""
        return (self.asked or self._known(connection) or Retention()).duration.total_seconds()

    def agree(self, connection: Connection, *, is_new: bool, is_last: bool = False) -> Retention:
        """Compare with the stored policy; with a new message, store the values that it lacks.

        If another transaction is writing the policy, the next message asks again. `is_last`: there is no next
        one.

        Raises:
            PolicyConflict: the stored policy differs.
            TablesMissing: the table does not exist.
            DBAPIError, TransientError: with `is_last`, another transaction is writing it.
        """
        memo, place = _memos.of(connection.engine.pool), self._place(connection)
        if memo.is_certain_in(place, connection.get_transaction()):
            return self.asked or Retention()
        innermost = connection.get_nested_transaction() or connection.get_transaction()
        try:
            # An error here must not abort the caller's transaction, nor a lock delay it.
            with database_of(connection).protected(connection):
                return self._agree(connection, memo, place, innermost, is_new=is_new, is_last=is_last)
        except DBAPIError as error:
            if codes.ends_wait(error) and not is_last:
                return self.asked or Retention()
            # A purge that does not know that keys name their time would delete them by another one.
            if self._key_time is not None or not codes.is_denied(error):
                raise_clearer(connection, self._tables.consumer, error)
            # The role has no right to the table: go on without it, and warn once.
            kept, is_known = self.asked or Retention(), place in memo.known
            memo.known[place], memo.seen[place] = kept, time.monotonic()
            if not is_known:
                self._warn(kept, error)
            return kept

    def _agree(
        self,
        connection: Connection,
        memo: _Memo,
        place: Any,
        innermost: Transaction | None,
        *,
        is_new: bool,
        is_last: bool,
    ) -> Retention:
        stored = look(connection, self._tables, self._consumer).get(self._consumer)
        kept = self.asked or (stored.kept if stored else Retention())
        transaction, consumer = connection.get_transaction(), (self._consumer, place[0][0], place[1])
        # An operator may have changed the policy since it was first seen; then it stays as it is.
        if stored is None or (place not in memo.known and self._asks_for_more(stored)):
            # Only a new message declares, and only one open transaction of this process at a time.
            if not is_new:
                return kept
            if memo.is_under_way(consumer) and not memo.is_declared_in(consumer, transaction):
                if is_last:
                    raise TransientError(f"consumer={self._consumer!r}: its policy is being stored just now")
                return kept
            if stored is None and self.form is not None:
                check_keys(connection, self._tables, self._consumer, self._mode, self.form)
            connection.execute(taking_statements.declare(self._tables), self._row(stored))
            if transaction is not None and not database_of(connection).is_autocommit(connection):
                for each in (place, consumer):
                    memo.declare_in(each, transaction, innermost or transaction)
                return kept
        elif memo.is_declared_in(consumer, transaction):  # perhaps by another inbox of this name
            return kept
        if self.form is not None:
            lowest = taking_statements.lowest_key(self._tables)
            memo.lowest[place] = connection.scalar(lowest, {"consumer_": self._consumer}) or ""
        memo.known[place], memo.seen[place] = kept, time.monotonic()
        memo.shortest[place] = kept.duration if stored is None else min(kept.duration, stored.retention)
        return kept

    def _asks_for_more(self, stored: Policy) -> bool:
        if stored.mode != self._mode:
            raise PolicyConflict(
                f"consumer={self._consumer!r}: this inbox has mode {self._mode}, but inbox_consumer says "
                f"{stored.mode}. The modes do not see each other's messages: rename one of the consumers, or "
                "set the mode with `inbox-outbox inbox set-policy`"
            )
        if stored.key_time != self._key_time:
            raise PolicyConflict(
                f"consumer={self._consumer!r}: this inbox has key_time={self._key_time!r}, but "
                f"inbox_consumer says {stored.key_time!r}. A consumer keeps the form of its keys: rename it"
            )
        if stored.digest_format != DIGEST_FORMAT:
            raise PolicyConflict(
                f"consumer={self._consumer!r}: this inbox-outbox writes payload digests of format "
                f"{DIGEST_FORMAT}, but inbox_consumer says {stored.digest_format}"
            )
        there = {name: seconds or 0 for name, seconds in stored.seconds.items()}
        for name, asked in self._seconds.items():
            if asked is not None and asked < there[name]:
                mine, its = (brief(timedelta(seconds=each)) for each in (asked, there[name]))
                raise PolicyConflict(
                    f"consumer={self._consumer!r}: {_COLUMNS[name]}={mine}, but inbox_consumer says {its}. "
                    "To shorten what is stored, use `inbox-outbox inbox set-policy`"
                )
        return any(asked is not None and asked > there[name] for name, asked in self._seconds.items())

    def _row(self, stored: Policy | None) -> dict[str, Any]:
        there: dict[str, int | None] = dict.fromkeys(_COLUMNS) if stored is None else stored.seconds
        defaults = times(Retention(), DEAD_RETENTION.total_seconds())
        chosen = {name: _first(self._seconds[name], there[name], defaults[name]) for name in _COLUMNS}
        return row(self._consumer, self._mode, chosen, self._key_time)

    def _place(self, connection: Connection) -> Any:
        """One declaration in one schema."""
        return self._key, tenant_of(connection)

    def _warn(self, kept: Retention, error: DBAPIError) -> None:
        _log.warning(
            "consumer %r: cannot compare its policy (mode %s, retention %s) with inbox_consumer, or store it "
            "there, so a purge may keep its keys for a different time. Grant this role SELECT and INSERT, or "
            "store the policy with `inbox-outbox inbox set-policy`: %s",
            self._consumer,
            self._mode,
            brief(kept.duration),
            error.orig,
        )


def _first(*values: int | None) -> int | None:
    return next((value for value in values if value is not None), None)
