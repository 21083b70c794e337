"""Tries the outbox's contract on the real tables of a database, and leaves nothing there."""

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from uuid import uuid4

from sqlalchemy import Connection, Engine, Table, func, select

from inbox_outbox_base.checks.catalogue import hidden_rows
from inbox_outbox_base.checks.missing import missing_table
from inbox_outbox_base.databases import member_statements
from inbox_outbox_base.databases.registry import checking, relaying
from inbox_outbox_base.databases.relaying import Relaying
from inbox_outbox_base.databases.taking import at_level
from inbox_outbox_base.errors.outbox import InvalidOption, TablesMissing, UnsafeSequence
from inbox_outbox_base.tables.inbox import tables as all_tables
from inbox_outbox_base.transactions.trying import Trials, refused_of, usable
from inbox_outbox_base.words.findings import CheckReport, Finding
from inbox_outbox_base.words.outgoing import Message
from outbox._publishing.outbox import Outbox
from outbox._publishing.safety import every
from outbox.schema import OutboxTables, tables

_TOPIC = "inbox-outbox-check"
_PAYLOAD = "Łukasz 😀".encode()


def check(engine: Engine, *, schema: str | None = None) -> CheckReport:
    """Try the outbox's contract on the tables of this database, and report every part of it.

    Looks at what each table is (a view, partitioned, foreign, distributed, with triggers or rules, ...) and
    at the sequence that numbers messages, and tries in transactions that are rolled back: a publish; an id
    that comes twice; messages in order; one of two messages that has left; a relay whose lease is taken over.
    No relay sees its messages, and it locks no row of yours. What the role has no right to try, or cannot be
    tried on a read-only server, is "not tried", which is not unsafe. The rights of a relay and of a publisher
    together are enough.

    Args:
        engine: the database; tables are found as an outbox on this engine finds them.
        schema: the PostgreSQL schema of the tables; None is the connection's own.

    Raises:
        InvalidOption: an argument cannot be used.
        TablesMissing: there are no tables of the outbox.
        UnsupportedDatabase: not PostgreSQL, MySQL, MariaDB or SQLite.
    """
    own = tables(schema)
    database = relaying(usable(engine, InvalidOption).dialect.name, own)
    trials = Trials(at_level(engine, database.own_isolation))
    every_table, outbox = all_tables(schema), Outbox(schema=schema, wake=False)
    probes = _OutboxProbes(trials, database, own, every_table.decision, every_table.version, outbox)
    return CheckReport(tuple(probes.findings()))


@dataclass(frozen=True, slots=True)
class _OutboxProbes:
    trials: Trials
    database: Relaying
    tables: OutboxTables
    decision: Table
    version: Table
    outbox: Outbox

    def findings(self) -> list[Finding]:
        if not self.trials.is_there(self.tables.message):
            raise TablesMissing(missing_table(self.tables.message))
        looked = [*self.trials.look(every(self.tables)), *self.trials.look_if_visible(self.decision)]
        looked += self.trials.revision(self.version)
        findings = [*looked, *self.trials.settings(), *self._hidden()]
        findings.append(self.trials.run("the sequence", self._sequence))
        probes: dict[str, Callable[[], str | None]] = {
            "a publish": self._published,
            "an id comes twice": self._repeated,
            "messages in order": self._in_order,
            "one of two messages has left": self._left,
            "a relay's lease is taken over": self._taken_over,
        }
        findings += self.trials.run_all(probes, refused_of(findings, every(self.tables)))
        return findings

    def _hidden(self) -> list[Finding]:
        with self.trials.rolled_back() as connection:
            hidden = checking(connection.dialect.name).hides_rows(connection, every(self.tables))
        # A publisher needs to see no rows.
        return [Finding("row-level policies", "said", hidden_rows(hidden))] if hidden else []

    def _sequence(self) -> str | None:
        try:
            with self.trials.rolled_back() as connection:
                self.database.check_sequence(connection)
        except UnsafeSequence as error:
            return str(error)
        return None

    def _publish(self, connection: Connection, count: int = 1) -> list[str]:
        messages = [Message(_TOPIC, _PAYLOAD, key=_TOPIC)] * count
        return self.outbox.publish_many(connection, messages)

    def _published(self) -> str | None:
        c = self.tables.message.c
        with self.trials.rolled_back() as connection:
            [own] = self._publish(connection)
            row = connection.execute(select(c.topic, c.payload).where(c.id == own)).one_or_none()
        if row is None:
            return "a message is not there after it was published: something drops its row"
        if (row.topic, bytes(row.payload)) != (_TOPIC, _PAYLOAD):
            return "a message is changed when it is written"
        with self.trials.rolled_back() as connection:
            if not connection.execute(select(c.id).where(c.id == own)).all():
                return None
        with self.trials.engine.begin() as connection:
            connection.execute(self.tables.message.delete().where(c.id == own))
        return "a transaction that is rolled back leaves its message"

    def _repeated(self) -> str | None:
        own, c = f"{_TOPIC}-{uuid4().hex}", self.tables.message.c
        with self.trials.rolled_back() as connection:
            for _ in range(2):
                self.outbox.publish(connection, _TOPIC, _PAYLOAD, id=own)
            count = connection.execute(select(func.count()).where(c.id == own)).scalar_one()
        return None if count == 1 else f"an id that is published twice has {count} messages"

    def _in_order(self) -> str | None:
        c = self.tables.message.c
        with self.trials.rolled_back() as connection:
            ids = [*self._publish(connection, 12), *self._publish(connection)]
            found = connection.execute(select(c.id).where(c.id.in_(ids)).order_by(c.sequence)).scalars().all()
        return None if list(found) == ids else "messages of a key are not numbered in their order"

    def _left(self) -> str | None:
        c = self.tables.message.c
        with self.trials.rolled_back() as connection:
            ids = self._publish(connection, 2)
            its = select(c.bucket, c.sequence).where(c.id.in_(ids)).order_by(c.sequence)
            places = [(row.bucket, row.sequence) for row in connection.execute(its)]
            letters = self.database.fetch(connection, places, 1_000)
            if sorted(each.id for each in letters) != sorted(ids):
                return "a relay does not read what was published"
            [first] = [each for each in letters if each.id == ids[0]]
            self.database.forget(connection, [first], keep=None)
            left = connection.execute(select(c.id).where(c.id.in_(ids))).scalars().all()
        return None if list(left) == ids[1:] else "a message that has left is not deleted, or another one is"

    def _taken_over(self) -> str | None:
        epoch = secrets.randbits(62)
        with self.trials.rolled_back() as connection:
            given = {"epoch": epoch, "name": _TOPIC, "lease": 60.0, "generation": 1, "keeps_sent": None}
            given["lease_ms"] = 60_000
            connection.execute(member_statements.join(self.tables), given)
            if not self.database.renew(connection, epoch, 1, 60.0):
                return "a relay cannot renew its lease"
            if not self.database.hold(connection, epoch, 1, 60.0):
                return "a relay cannot lock its lease"
            connection.execute(member_statements.leave(self.tables), {"epoch_": epoch})
            if self.database.renew(connection, epoch, 1, 60.0):
                return "a relay renews a lease that was taken away"
        return None
