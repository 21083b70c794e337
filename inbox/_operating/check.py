"""Tries the inbox's contract on the real tables of a database, and leaves nothing there."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from uuid import uuid4

from sqlalchemy import Connection, Engine, Table, insert, select
from sqlalchemy.exc import DBAPIError

from inbox._status_mode.stores import SqlStore
from inbox._status_mode.stores.records import Request
from inbox_outbox_base.checks import options
from inbox_outbox_base.checks.keys import digest
from inbox_outbox_base.checks.missing import missing_table
from inbox_outbox_base.checks.retention import DAYS_AHEAD
from inbox_outbox_base.databases import claiming_statements, taking_statements
from inbox_outbox_base.databases.registry import checking, taking
from inbox_outbox_base.databases.taking import Attempt, KeyBatch, Stored, Taking, at_level
from inbox_outbox_base.databases.taking_statements import Aging
from inbox_outbox_base.errors import codes
from inbox_outbox_base.errors.inbox import TablesMissing
from inbox_outbox_base.tables.inbox import Tables, tables
from inbox_outbox_base.transactions.policy import look
from inbox_outbox_base.transactions.trying import NotTried, Trials, refused_of, usable
from inbox_outbox_base.words.findings import CheckReport, Finding
from inbox_outbox_base.words.incoming import Verdict

from .partition_days import days_of

_BEFORE_ALL = datetime(1971, 1, 1, tzinfo=UTC)
"""Older than any row of yours: a purge of the check's rows reads no others."""
_ALIKE = ("a", "A", "a ", "á", "a\u0301")
"""Endings that some collations take for the same."""
_RESULT = '"Łukasz 😀"'
_WAIT = 5.0
"""Seconds to wait for somebody who writes to the whole SQLite file."""
_ADVICE = "name a consumer whose rows the table takes with consumer="


def check(engine: Engine, *, schema: str | None = None, consumer: str | None = None) -> CheckReport:
    """Try the inbox's contract on the tables of this database, and report every part of it.

    Looks at what each table is (a view, partitioned, foreign, distributed, with triggers or rules, ...), and
    tries in transactions that are rolled back: a key that comes twice, in one transaction and in two; keys
    that are almost equal; a result; a purge of some of several rows; in status-table mode, a lease that is
    taken over. Its rows have random keys and are never committed; it locks no row of yours. What the role has
    no right to try, or cannot be tried on a read-only server, is "not tried", which is not unsafe.

    Args:
        engine: the database; tables are found as an inbox on this engine finds them.
        schema: the PostgreSQL schema of the tables; None is the connection's own.
        consumer: the name of one of your consumers, if the tables do not take rows of others, because of
            row-level policies or partitions by consumer.

    Raises:
        InvalidOption: an argument cannot be used.
        TablesMissing: there are no tables of the inbox.
        UnsupportedDatabase: not PostgreSQL, MySQL, MariaDB or SQLite.
    """
    database = taking(usable(engine).dialect.name)
    own = at_level(engine, database.own_isolation)
    trials = Trials(own, "" if consumer else _ADVICE)
    name = f"inbox-outbox-check-{uuid4().hex}" if consumer is None else options.consumer(consumer)
    probes = _InboxProbes(trials, database, tables(schema), name, schema)
    return CheckReport(tuple(probes.findings()))


@dataclass(frozen=True, slots=True)
class _InboxProbes:
    trials: Trials
    database: Taking
    tables: Tables
    consumer: str
    schema: str | None

    def findings(self) -> list[Finding]:
        t = self.tables
        all_tables = (t.message, t.consumer, t.ledger, t.rejected, t.status)
        there = [each for each in all_tables if self.trials.is_there(each)]
        if t.message not in there and t.status not in there:
            raise TablesMissing(missing_table(t.message))
        looked = [*self.trials.look(there), *self.trials.look_if_visible(t.decision)]
        looked += self.trials.look_if_visible(t.refused)
        looked += self.trials.revision(t.version)
        findings = [*looked, *self.trials.settings(), *self._hidden(there)]
        if {t.message, t.consumer} <= {*there}:
            findings += self._ending()
        by_table: dict[Table, dict[str, Callable[[], str | None]]] = {
            t.message: {
                "a key comes twice": self._repeated,
                "keys that are almost equal": self._alike,
                "a key in two transactions": self._concurrent,
                "a result": self._result,
                "a purge": partial(self._purged, t.message),
            },
            t.status: {
                "a lease is taken over": self._taken_over,
            },
        }
        for table in (each for each in by_table if each in there):
            findings += self.trials.run_all(by_table[table], refused_of(findings, [table]))
        return findings

    def _hidden(self, there: list[Table]) -> list[Finding]:
        with self.trials.rolled_back() as connection:
            hidden = checking(connection.dialect.name).hides_rows(connection, there)
        why = "row-level policies hide rows from this role, so a purge and `inbox status` refuse it"
        return [Finding(f"table {name}", "said", why) for name in hidden]

    def _ending(self) -> list[Finding]:
        """The consumers whose partitions end soon, if this role may look."""
        try:
            with self.trials.rolled_back() as connection:
                found = days_of(connection, self.tables.message, look(connection, self.tables))
                soon = self.database.now(connection) + DAYS_AHEAD
        except DBAPIError as error:
            if not codes.is_denied(error):
                raise
            return []
        return [
            Finding(
                f"consumer {consumer}",
                "said",
                f"its partitions end at {days.end:%Y-%m-%d %H:%M} UTC, and then its messages wait: run "
                "`inbox-outbox partitions` every day",
            )
            for consumer, days in found.items()
            if days.end < soon
        ]

    def _attempt(self, ending: str = "") -> Attempt:
        key = f"inbox-outbox-check {uuid4().hex}{ending}"
        return Attempt(self.tables, self.consumer, key, os.urandom(16), digest("payload"))

    def _take(self, connection: Connection, attempt: Attempt, wait: float = _WAIT) -> bool | Stored:
        answer = self.database.take(connection, attempt, wait)
        if answer is None and wait and not self.database.locks_rows:
            raise NotTried("somebody else is writing to the database")
        return False if answer is None else answer

    def _repeated(self) -> str | None:
        first = self._attempt()
        again = Attempt(self.tables, self.consumer, first.key, os.urandom(16), first.digest)
        with self.trials.rolled_back() as connection:
            if self._take(connection, first) is not True:
                return "a new key is not taken: something drops its row"
            stored = self.database.find(connection, first)
            if stored is None or (stored.claim, stored.digest) != (first.claim, first.digest):
                return "a row is not there as it was inserted: something drops or changes it"
            answer = self._take(connection, again)
            if not isinstance(answer, Stored) or answer.claim != first.claim:
                return "a key that was taken is taken again: every duplicate would take effect"
            batch = KeyBatch(self.tables, self.consumer, os.urandom(16), [first.key, f"{first.key}+"])
            if self.database.take_many(connection, batch, _WAIT) != {f"{first.key}+"}:
                return "a batch does not tell new keys from those that were taken"
        return None

    def _alike(self) -> str | None:
        base = self._attempt().key
        keys = sorted(f"{base}{ending}" for ending in _ALIKE)
        batch = KeyBatch(self.tables, self.consumer, os.urandom(16), keys)
        with self.trials.rolled_back() as connection:
            taken = self.database.take_many(connection, batch, _WAIT)
            if taken != set(keys):
                return "different keys count as the same, and the later ones would be lost"
            stored = self.database.find_many(connection, batch)
        return None if set(stored) == set(keys) else "keys are not stored as they were given"

    def _concurrent(self) -> str | None:
        attempt = self._attempt()
        other = Attempt(self.tables, self.consumer, attempt.key, os.urandom(16), attempt.digest)
        with self.trials.two() as (first, second):
            if self._take(first, attempt) is not True:
                return "a new key is not taken: something drops its row"
            if self._take(second, other, 0) is not False:
                return "two transactions take one key at the same time"
        with self.trials.rolled_back() as connection:
            if self.database.find(connection, attempt) is None:
                return None
        with self.trials.engine.begin() as connection:
            forget = taking_statements.forget(self.tables.message)
            connection.execute(forget, attempt.where())
        return "a transaction that is rolled back leaves its row"

    def _result(self) -> str | None:
        attempt = self._attempt()
        with self.trials.rolled_back() as connection:
            self._take(connection, attempt)
            given = attempt.where() | {"claim_": attempt.claim, "result_": _RESULT}
            stored = connection.execute(taking_statements.store_result(self.tables), given).rowcount == 1
            found = self.database.find(connection, attempt)
        if not stored or found is None:
            return "a result is not stored"
        return (
            None if found.result == _RESULT else "a result is changed: check the connection's character set"
        )

    def _purged(self, table: Table) -> str | None:
        c, old = table.c, _BEFORE_ALL + timedelta(microseconds=int.from_bytes(os.urandom(5)))
        attempts = [self._attempt() for _ in range(16)]
        rows = [
            each.row() | {"accepted_at": old if place % 2 else datetime.now(UTC)}
            for place, each in enumerate(attempts)
        ]
        its = {"consumer_": self.consumer, "after": old, "horizon": old + timedelta(seconds=1), "batch": 500}
        with self.trials.rolled_back() as connection:
            connection.execute(insert(table), rows)
            gone = self.database.delete_oldest(connection, Aging(table, "accepted_at"), its)
            ours = c.consumer == self.consumer, c.key.in_([each.key for each in attempts])
            left = set(connection.execute(select(c.key).where(*ours)).scalars())
        if left != {each.key for each in attempts[::2]}:
            return "a purge does not delete exactly the old rows"
        return None if len(gone) == len(attempts[1::2]) else "a purge does not count what it deletes"

    def _taken_over(self) -> str | None:
        store = SqlStore(self.trials.engine, schema=self.schema)
        first, second = self._request(), self._request()
        second.key = first.key
        with self.trials.rolled_back() as connection:
            claimed, met = store.claim_on(connection, first), store.claim_on(connection, second)
            if claimed is None or claimed.verdict is not Verdict.NEW:
                return "a new message is not claimed: something drops its record"
            if met is None or met.verdict is not Verdict.IN_FLIGHT:
                return "a message that somebody holds is claimed again"
            held = {"consumer_": first.consumer, "key_": first.key, "token_": claimed.record.token}
            write = claiming_statements.write(self.tables, frozenset({"lease"}), claiming_statements.HELD)
            if connection.execute(write, held | {"lease": -60.0}).rowcount != 1:
                return "the holder of a message cannot write its record"
            after = store.claim_on(connection, second)
            if after is None or after.verdict is not Verdict.NEW:
                return "a message whose lease is over is not taken over"
            if connection.execute(write, held | {"lease": 60.0}).rowcount != 0:
                return "a holder whose lease was taken over still writes"
        return None

    def _request(self) -> Request:
        return Request(
            consumer=self.consumer,
            key=self._attempt().key,
            claim=os.urandom(16),
            owner="inbox-outbox check",
            lease=60.0,
            max_attempts=3,
            digest=None,
            payload=None,
            retention=60.0,
            dead_retention=60.0,
        )
