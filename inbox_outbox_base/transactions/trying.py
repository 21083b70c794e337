"""Tries parts of the contract on the real tables, each in a transaction that is rolled back."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy import Connection, Engine, Table, false, literal, select
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from inbox_outbox_base.checks.missing import raise_clearer
from inbox_outbox_base.databases.registry import checking, taking
from inbox_outbox_base.errors import codes
from inbox_outbox_base.errors.inbox import InboxError, InvalidOption, TablesMissing
from inbox_outbox_base.errors.secrets import reason
from inbox_outbox_base.tables.inbox import REVISION
from inbox_outbox_base.words.findings import Finding

from .connect import connected

NO_SECOND = "the pool has no second connection"


class NotTried(Exception):
    """A part that cannot be tried here; the text says why."""


@dataclass(frozen=True, slots=True)
class Trials:
    """One check of one database."""

    engine: Engine
    """At the isolation level of our own transactions."""
    advice: str = ""
    """What to do if the tables take no rows like those of the check."""

    @contextmanager
    def rolled_back(self) -> Iterator[Connection]:
        """A transaction that leaves nothing, and in which nothing waits for the COMMIT."""
        with connected(self.engine) as connection:
            transaction = connection.begin()
            try:
                checking(connection.dialect.name).run_at_once(connection)
                yield connection
            finally:
                transaction.rollback()

    @contextmanager
    def two(self) -> Iterator[tuple[Connection, Connection]]:
        """Two such transactions.

        Raises:
            NotTried: the pool has only one connection.
        """
        with self.rolled_back() as first, connected(self.engine) as second:
            if first.connection.dbapi_connection is second.connection.dbapi_connection:
                raise NotTried(NO_SECOND)
            with second.begin() as transaction:
                try:
                    yield first, second
                finally:
                    transaction.rollback()

    def run(self, what: str, probe: Callable[[], str | None]) -> Finding:
        """Try one part; `probe` returns what is wrong."""
        try:
            wrong = probe()
        except NotTried as error:
            return Finding(what, "not tried", str(error))
        except PoolTimeoutError:
            return Finding(what, "not tried", NO_SECOND)
        except DBAPIError as error:
            return self._failed(what, error)
        except InboxError as error:
            return Finding(what, "refused", str(error))
        return Finding(what, "refused", wrong) if wrong else Finding(what, "right")

    def run_all(
        self, probes: Mapping[str, Callable[[], str | None]], refused: Sequence[str]
    ) -> Iterator[Finding]:
        """Try these parts; none of them if tables that they need are refused, or nothing can be written."""
        is_read_only = self.is_read_only()
        for what, probe in probes.items():
            if refused:
                yield Finding(what, "not tried", f"table {', '.join(refused)} is refused")
            elif is_read_only:
                yield Finding(what, "not tried", "the server is read-only")
            else:
                yield self.run(what, probe)

    def _failed(self, what: str, error: DBAPIError) -> Finding:
        why = reason(error)
        if codes.is_denied(error):
            return Finding(what, "not tried", f"no right ({why})")
        if codes.is_read_only(error) or codes.is_transient(error):
            return Finding(what, "not tried", why)
        if isinstance(error, IntegrityError) and self.advice:
            return Finding(what, "not tried", f"{why}; {self.advice}")
        return Finding(what, "refused", why)

    def is_there(self, table: Table) -> bool:
        """Whether the table exists; also if this role may not read it."""
        try:
            with self.rolled_back() as connection:
                try:
                    connection.execute(select(literal(1)).select_from(table).where(false()))
                except DBAPIError as error:
                    if not codes.is_denied(error):
                        raise_clearer(connection, table, error)
        except TablesMissing:
            return False
        return True

    def look(self, tables: Sequence[Table]) -> list[Finding]:
        """What the catalogue says about each of these tables."""
        database = checking(self.engine.dialect.name)
        findings: list[Finding] = []
        for table in tables:
            with self.rolled_back() as connection:
                found = database.look(connection, [table])
                if not any(each.result in ("refused", "not tried") for each in found):
                    lacking = database.lacking_indexes(connection, table)
                    found += (Finding(f"table {table.name}", "said", each.text) for each in lacking)
                findings += found or [Finding(f"table {table.name}", "right")]
        return findings

    def look_if_visible(self, table: Table) -> list[Finding]:
        """The same of a table that only operators need: nothing if this role does not see it."""
        found = self.look([table]) if self.is_there(table) else []
        return [each for each in found if each.result != "not tried"]

    def revision(self, version: Table) -> list[Finding]:
        """Whether the tables are of another revision than this version's; nothing if this role does not see
        it."""
        if not self.is_there(version):
            return []
        with self.rolled_back() as connection:
            try:
                found = connection.scalar(select(version.c.version_num))
            except DBAPIError as error:
                if codes.is_denied(error):
                    return []
                raise
        if found in (None, REVISION):
            return []
        todo = "run `inbox-outbox migrate`" if found < REVISION else "install the version that made them"
        why = f"their revision is {found}, this version is for {REVISION}: {todo}"
        return [Finding("revision of the tables", "said", why)]

    def settings(self) -> list[Finding]:
        """What the settings of the server and of its sessions may lose or change."""
        with self.rolled_back() as connection:
            risks = taking(self.engine.dialect.name).risks(connection)
            database = checking(self.engine.dialect.name)
            found = [*database.session(connection), *database.said(connection)]
        crash = f"a crash can lose messages that were acknowledged: {', '.join(risks)}"
        return [*found, Finding("settings", "said", crash)] if risks else found

    def is_read_only(self) -> bool:
        """Whether nothing can be written here."""
        with self.rolled_back() as connection:
            return checking(self.engine.dialect.name).is_read_only(connection)


def usable(engine: object, error: type[InvalidOption] = InvalidOption) -> Engine:
    """The engine, if it is one for synchronous code.

    Raises:
        InvalidOption: it is not.
    """
    if not isinstance(engine, Engine) or engine.dialect.is_async:
        raise error(f"engine={type(engine).__name__}: expected an Engine")
    return engine


def refused_of(findings: Sequence[Finding], tables: Sequence[Table]) -> list[str]:
    """The names of those tables on which, as the catalogue alone says, nothing should be tried."""
    refused = {each.what for each in findings if each.result == "refused"}
    return [each.name for each in tables if f"table {each.name}" in refused]
