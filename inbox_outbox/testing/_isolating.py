"""Databases for tests: made once, and after each test as they were."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NoReturn

from sqlalchemy import (
    URL,
    Connection,
    Engine,
    MetaData,
    Table,
    Transaction,
    create_engine,
    delete,
    event,
    inspect,
    select,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, sessionmaker

from inbox.errors import InboxError, InvalidOption
from inbox.migration import database_url, migrate
from inbox.schema import VERSION_TABLE, tables
from inbox_outbox_base.checks.url import for_engine
from inbox_outbox_base.databases.registry import relaying

_MARK = "inbox_outbox_test"
"""A savepoint that is gone if SQL or DDL has ended the transaction, even if another one is open by then. It
is never released: where the driver begins no transaction before a savepoint, it is the transaction."""
_ENDED = (
    "the test's transaction was committed or rolled back by the code under test, which a rollback after the "
    "test cannot undo: use `emptied` (the fixture `emptied_engine`)"
)
_OWN_CONNECTIONS = (
    "relays, SqlStore, PurgeService, the functions for operators, and whatever else takes an Engine use "
    "connections and COMMITs of their own: they do not see the test's transaction, and its rollback does not "
    "undo what they write. Use `emptied` (the fixture `emptied_engine`)"
)


class EscapesRollback(InboxError):
    """Something that a rollback after the test cannot undo: a COMMIT or ROLLBACK of the test's connection, or
    code with connections of its own."""


@dataclass(frozen=True, slots=True)
class RolledBack:
    """A test's transaction."""

    connection: Connection
    """It is in a transaction that is rolled back after the test. Code under test writes on it, and neither
    commits nor rolls it back."""
    sessions: sessionmaker[Session]
    """Makes Sessions on this connection: a COMMIT of theirs releases a savepoint. Also a source for
    `Inbox.handler` and `Inbox.transaction`."""

    @property
    def engine(self) -> NoReturn:
        """There is none, for what takes an Engine would escape the rollback.

        Raises:
            EscapesRollback: always; it says what to use.
        """
        raise EscapesRollback(_OWN_CONNECTIONS)


@contextmanager
def database(
    url: str | URL | None = None, *, metadata: MetaData | None = None, schema: str | None = None
) -> Iterator[Engine]:
    """A migrated database for tests. It takes as long as the migration: make one for all tests.

    Args:
        url: the database, which has to exist, with all its tables empty: tests that end in `emptied` delete
            every row. None: SQLite in a temporary file, which is deleted afterwards. The tables in a database
            of yours stay.
        metadata: your own tables, made if they are not there; None if something else makes them.
        schema: the PostgreSQL schema of our tables.

    Returns:
        A context manager with the Engine, disposed of afterwards.

    Raises:
        InvalidOption: not a URL, or a table has rows. The error names the table, and says nothing of the
            password.
        UnsupportedDatabase: neither PostgreSQL, MySQL, MariaDB nor SQLite.
    """
    with ExitStack() as stack:
        if url is None:
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="inbox-outbox-")))
            url = f"sqlite:///{folder / 'test.db'}"
        elif isinstance(url, URL):
            url = url.render_as_string(hide_password=False)
        address, arguments = for_engine(database_url(url))
        engine = create_engine(address, connect_args=arguments)
        stack.callback(engine.dispose)
        migrate(engine, schema=schema)
        if metadata is not None:
            metadata.create_all(engine)
        _refuse_rows(engine, _ours(schema) + _theirs(metadata))
        yield engine


@contextmanager
def rolled_back(engine: Engine) -> Iterator[RolledBack]:
    """A transaction for one test, rolled back at the end of the block.

    Publishing, `accept`, `take`, `transaction` and `handler` work in it, the guard of the COMMIT included.
    What needs an Engine does not: a relay, `SqlStore`, a purge, the functions for operators. Nothing commits,
    so no relay is woken, and no answer to a COMMIT can be lost.

    Args:
        engine: the database, with the tables.

    Returns:
        A context manager with the `RolledBack`.

    Raises:
        EscapesRollback: the code under test has committed or rolled back the connection itself, or SQL or DDL
            has ended its transaction: then rows may be left. The COMMIT raises it before anything is
            committed; the rest is found at the end of the block.
    """
    is_over = False

    def refuse(_: Connection) -> None:
        if not is_over:
            raise EscapesRollback(_ENDED)

    with engine.connect() as connection:
        transaction = connection.begin()
        connection.exec_driver_sql(f"SAVEPOINT {_MARK}")
        relaying(engine.dialect.name, tables().outbox).check_savepoint(connection)
        event.listen(connection, "commit", refuse)
        event.listen(connection, "rollback", refuse)
        makes = sessionmaker(connection, join_transaction_mode="create_savepoint")
        try:
            yield RolledBack(connection, makes)
            _check_open(connection, transaction)
        finally:
            is_over = True
            if not (transaction.is_active or connection.closed):
                connection.invalidate()  # SQLAlchemy takes the transaction for over, and would not roll back


@contextmanager
def emptied(
    engine: Engine, *, metadata: MetaData | None = None, schema: str | None = None
) -> Iterator[Engine]:
    """A database for one test whose code has connections of its own; all rows are deleted at the end of the
    block. Close what still writes before: relays, consumers, open transactions.

    It deletes rather than truncates: the outbox relies on numbers that are never used again.

    Args:
        engine: the database, with the tables. Its pool is emptied, too, for an inbox remembers for a minute
            that a consumer's settings are stored; other engines on this database remember it, too.
        metadata: your own tables, emptied as well; None if there are none.
        schema: the PostgreSQL schema of our tables.

    Returns:
        A context manager with the same engine.

    Raises:
        InvalidOption: a table has rows before the test; it names the table, and nothing is deleted.
    """
    ours, theirs = _ours(schema), _theirs(metadata)
    _refuse_rows(engine, ours + theirs)
    try:
        yield engine
    finally:
        with engine.begin() as connection:
            for each in reversed(_there(connection, ours + theirs)):
                connection.execute(delete(each))
        engine.dispose()


def _check_open(connection: Connection, transaction: Transaction) -> None:
    if not transaction.is_active:
        raise EscapesRollback(_ENDED)
    if not connection.invalidated:  # else the database has rolled back
        try:
            connection.exec_driver_sql(f"ROLLBACK TO SAVEPOINT {_MARK}")
        except DBAPIError as error:
            raise EscapesRollback(_ENDED) from error


def _ours(schema: str | None) -> list[Table]:
    """Our tables, except those with rows from the beginning."""
    all_tables = tables(schema)
    kept = {VERSION_TABLE, all_tables.outbox.bucket.name}
    return [each for each in all_tables.message.metadata.sorted_tables if each.name not in kept]


def _theirs(metadata: MetaData | None) -> list[Table]:
    return [] if metadata is None else metadata.sorted_tables


def _there(connection: Connection, wanted: list[Table]) -> list[Table]:
    look: Any = inspect(connection)
    return [each for each in wanted if look.has_table(each.name, each.schema)]


def _refuse_rows(engine: Engine, wanted: list[Table]) -> None:
    with engine.connect() as connection:
        for each in _there(connection, wanted):
            if connection.execute(select(1).select_from(each).limit(1)).first() is not None:
                raise InvalidOption(
                    f"url: table {each.name} has rows: expected a database for tests, which is empty before "
                    "each of them. If a test was killed, drop the database and create it again"
                )
