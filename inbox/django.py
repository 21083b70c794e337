"""The inbox and the outbox in Django's transactions, on the connection of its ORM:

    with transaction.atomic():
        Order.objects.create(id="order-42")
        outbox.publish(connection(), topic="orders", payload={"id": "order-42"})

Django itself is imported by the functions only.
"""

import functools
import sqlite3
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext
from sqlalchemy import URL, Connection, Engine, NullPool, create_engine
from sqlalchemy.orm import Session, sessionmaker

from inbox import migration
from inbox._exactly_once.inbox import Inbox
from inbox._listening.json_types import JsonResult
from inbox._listening.outcome import Outcome
from inbox_outbox_base.checks.keys import Key
from inbox_outbox_base.errors.inbox import TransactionAborted, UnsupportedDatabase, UnusableConnection
from inbox_outbox_base.supported import FOLDERS, part

__all__ = ["connection", "downgrade", "handler", "upgrade"]

M = TypeVar("M")


def connection(using: str = "default") -> Connection:
    """A SQLAlchemy Connection in Django's current transaction, for `accept`, `take` and `publish`.

    It is Django's own connection: what you write there commits or is rolled back with what the ORM writes.
    Its `commit`, `rollback` and `close` do nothing, because the transaction is Django's. After Django's
    COMMIT, relays are woken for what was published. Ask for it again in each `atomic` block, and do not keep
    it: the end of the block is not the end of this object. Inboxes do not tell `on_event` about `accept` and
    `take`, because they do not see the COMMIT.

    Args:
        using: the name of a database in Django's DATABASES, on PostgreSQL through psycopg 3, or on SQLite.

    Raises:
        UnusableConnection: not inside `transaction.atomic()` of this database.
        UnsupportedDatabase: another database or driver. Django's MySQL backend needs mysqlclient.
    """
    from django.db import connections, transaction

    wrapper = connections[using]
    if not wrapper.in_atomic_block:
        raise UnusableConnection(f"using={using!r}: call this inside transaction.atomic(using={using!r})")
    opened = _opened(using, wrapper)

    def has_committed() -> None:
        _current.pop(wrapper, None)
        # No event of SQLAlchemy's tells the engine's listeners of Django's COMMIT.
        opened.engine.dispatch.commit(opened)

    transaction.on_commit(has_committed, using=using)
    return opened


def handler(
    inbox: Inbox,
    *,
    key: Callable[[Any], Key],
    payload: Callable[[Any], Any] | None = None,
    message_time: Callable[[Any], datetime] | None = None,
    using: str = "default",
) -> Callable[[Callable[[M], JsonResult]], Callable[[M], Outcome]]:
    """Decorate `body(message)`: it runs once per key, inside `transaction.atomic(durable=True)`, and what it
    writes with the ORM commits together with the message's row.

    The body's return value (JSON) is stored with the row and is the `Outcome.result` of every duplicate. When
    the decorated function returns, acknowledge the message. Errors are not retried here: deliver the message
    again.

    Args:
        inbox: the inbox whose consumer takes the messages.
        key: a function of the message.
        payload: a function of the message, as for `Inbox.accept`.
        message_time: a function of the message, as for `Inbox.accept`.
        using: as for `connection`.

    Raises:
        TransactionAborted: the body swallowed an error, so that Django or the database would have rolled back
            without telling; or it called `set_rollback(True)`. Nothing was written.
        NotTaken: as for `Inbox.transaction`, which also has the other errors.
        RuntimeError: Django's, if it is called inside another `atomic` block.
    """

    def decorate(body: Callable[[M], JsonResult]) -> Callable[[M], Outcome]:
        def run(_: object, message: M) -> Any:
            return body(message)

        @functools.wraps(body)
        def handle_message(message: M) -> Outcome:
            from django.db import connections, transaction

            with transaction.atomic(using=using, durable=True):
                session: sessionmaker[Session] = sessionmaker(connection(using))
                decorated = inbox.handler(
                    session, key=key, payload=payload, message_time=message_time, attempts=1
                )
                outcome = decorated(run)(message)
                if connections[using].needs_rollback:
                    raise TransactionAborted(
                        "the body swallowed an error of an inner atomic block, or called set_rollback(True): "
                        "nothing was written"
                    )
            return outcome

        return handle_message

    return decorate


def upgrade(
    revision: str, *, schema: str | None = None, features: Sequence[str] | None = None
) -> Callable[[Any, Any], None]:
    """The function of a `RunPython` in a migration of yours, which brings our tables to a revision.

    Args:
        revision: as for `inbox.migration.upgrade`.
        schema: as for `inbox.migration.upgrade`.
        features: as for `inbox.migration.upgrade`.

    Raises as `inbox.migration.upgrade`, when Django runs it.
    """
    return _migrating(migration.upgrade, revision, schema=schema, features=features)


def downgrade(
    revision: str = "base", *, schema: str | None = None, features: Sequence[str] | None = None
) -> Callable[[Any, Any], None]:
    """The reverse of such a `RunPython`.

    Args:
        revision: as for `inbox.migration.downgrade`.
        schema: as for `inbox.migration.downgrade`.
        features: as for `inbox.migration.downgrade`.

    Raises as `inbox.migration.downgrade`, when Django runs it.
    """
    return _migrating(migration.downgrade, revision, schema=schema, features=features)


def _migrating(step: Callable[..., None], revision: str, **options: Any) -> Callable[[Any, Any], None]:
    def migrate(_: object, schema_editor: Any) -> None:
        opened = connection(schema_editor.connection.alias)
        context = MigrationContext.configure(opened, opts=migration.options(options["schema"]))
        with Operations.context(context) as op:
            step(op, revision, **options)

    return migrate


class _DjangoConnection(Connection):
    """Its transaction and its connection are Django's."""

    def commit(self) -> None:
        """Django commits."""

    def rollback(self) -> None:
        """Django rolls back."""

    def close(self) -> None:
        """Django closes it, or uses it again."""

    def invalidate(self, exception: BaseException | None = None) -> None:
        """Django finds out itself that it is broken."""


class _PlainCursor(sqlite3.Cursor):
    """Reads times as text, as SQLAlchemy expects: Django has SQLite's driver read them as datetime."""

    def fetchone(self) -> Any:
        row = super().fetchone()
        return row and _as_text(row)

    def fetchmany(self, size: int | None = 1) -> list[Any]:
        return [*map(_as_text, super().fetchmany(size or 1))]

    def fetchall(self) -> list[Any]:
        return [*map(_as_text, super().fetchall())]


def _as_text(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(value.isoformat(" ") if isinstance(value, datetime) else value for value in row)


class _Borrowed:
    """Django's connection of the driver, which ends no transaction and is not closed."""

    def __init__(self, driver: Any) -> None:
        self.__dict__["_driver"] = driver

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """The driver's: by it, the driver is known."""
        return self._driver.__class__

    def cursor(self, *given: Any, **options: Any) -> Any:
        """As the driver's."""
        if isinstance(self._driver, sqlite3.Connection):
            return self._driver.cursor(_PlainCursor)
        return self._driver.cursor(*given, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._driver, name, value)

    def commit(self) -> None:
        """The transaction is Django's."""

    def rollback(self) -> None:
        """The transaction is Django's."""

    def close(self) -> None:
        """The connection is Django's."""


class _Current(NamedTuple):
    """The Connection for one transaction of Django's: memories take two of SQLAlchemy's transactions that see
    a row as a proof that it is committed."""

    outermost: object
    """Django's block that began the transaction."""
    driver: object
    opened: _DjangoConnection


_current: WeakKeyDictionary[Any, _Current] = WeakKeyDictionary()
"""By Django's connection, of which each thread has its own."""


def _opened(using: str, wrapper: Any) -> _DjangoConnection:
    """The Connection in Django's current transaction, the same until that has ended."""
    outermost, driver = wrapper.atomic_blocks[0], wrapper.connection
    kept = _current.get(wrapper)
    if kept is not None and kept.outermost is outermost and kept.driver is driver:
        begun = kept.opened.get_transaction()
        if begun is not None and begun.is_active:
            return kept.opened
    engine = _engine(using, wrapper)
    pool = NullPool(lambda: _Borrowed(driver), dialect=engine.dialect, reset_on_return=None)
    opened = _DjangoConnection(engine, connection=pool.connect())
    opened.begin()  # so that nothing that joins it believes that the transaction is its own
    _current[wrapper] = _Current(outermost, driver, opened)
    return opened


_engines: dict[str, tuple[Any, Engine]] = {}
"""By name: Django's settings, and the engine whose connections are made as Django makes them."""


def _engine(using: str, wrapper: Any) -> Engine:
    """The engine that knows the database; its own connections are apart from Django's."""
    settings, engine = _engines.get(using, (None, None))
    if engine is None or settings is not wrapper.settings_dict:
        driver = type(wrapper.connection).__module__.partition(".")[0]
        untried = UnsupportedDatabase(
            f"using={using!r}: {wrapper.vendor} through {driver}; expected PostgreSQL through psycopg "
            "(version 3), or SQLite"
        )
        if wrapper.vendor not in FOLDERS:
            raise untried
        settings = wrapper.settings_dict
        place = [settings[each] or None for each in ("USER", "PASSWORD", "HOST", "PORT", "NAME")]
        user, password, host, port, database = place
        name = f"{wrapper.vendor}+{part('connecting', wrapper.vendor).driver}"
        try:
            engine = create_engine(
                URL.create(name, user, password, host, port and int(port), str(database)),
                creator=lambda: wrapper.Database.connect(**wrapper.get_connection_params()),
                poolclass=NullPool,
            )
        except ModuleNotFoundError as error:  # SQLAlchemy's driver for it is not here
            raise untried from error
        if engine.dialect.loaded_dbapi.__name__.partition(".")[0] != driver:
            raise untried
        with engine.connect():  # it learns the server's version there, and rolls back
            _engines[using] = settings, engine
    return engine
