"""Making and upgrading the tables.

Three ways in, all through the same revisions and the same version table, `inbox_outbox_version`, so that
they can follow each other on one database:

- `migrate(engine)`, which is what `inbox-outbox migrate --url URL` calls;
- `alembic upgrade head` in a checkout of the project, with INBOX_OUTBOX_URL set;
- `upgrade(op)` and `downgrade(op)` in a revision of the application's own Alembic history.
"""

import io
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import Script, ScriptDirectory
from sqlalchemy import (
    Column,
    Connection,
    Engine,
    PrimaryKeyConstraint,
    String,
    delete,
    func,
    insert,
    inspect,
    select,
)
from sqlalchemy.schema import CreateSchema, DropTable

from ._url import database_url
from .errors import InvalidOption, TransientError, UnsupportedDatabase
from .schema import VERSION_TABLE, tables

__all__ = [
    "URL_VARIABLE",
    "check",
    "current",
    "database_url",
    "downgrade",
    "forget_base",
    "migrate",
    "options",
    "script",
    "turn",
    "upgrade",
]

URL_VARIABLE = "INBOX_OUTBOX_URL"
"""The environment variable that names the database."""

_DIALECTS = ("postgresql", "mysql", "mariadb", "sqlite")
_LOCK = 112_589_990_684  # an arbitrary number, the same for everybody who migrates
_LOCK_WAIT = 60  # seconds
_ALEMBIC = threading.Lock()  # its environment lives in global variables


def migrate(engine: Engine, revision: str = "head", *, schema: str | None = None) -> None:
    """Bring the tables to a revision, up or down; several callers at once take turns.

    Args:
        engine: the database.
        revision: "head" (the newest), "base" (no tables), or a revision's name.
        schema: PostgreSQL only: the schema to place the tables in, made if it is not there.

    Raises:
        InvalidOption: there is no such revision, or `schema` on another database.
        UnsupportedDatabase: neither PostgreSQL, MySQL, MariaDB nor SQLite, or tables that a newer version of
            this package has made.
        TransientError: somebody else has been migrating for a minute.
    """
    target = _position(revision)
    with turn(engine, schema) as connection:
        move = command.upgrade if target >= _reached(connection, schema) else command.downgrade
        with _ALEMBIC:
            move(_config(connection=connection, schema=schema), revision)


@contextmanager
def turn(engine: Engine, schema: str | None = None) -> Iterator[Connection]:
    """A transaction in which nobody else migrates, with the schema made if it is not there.

    Raises: as `migrate`.
    """
    check(engine.dialect.name, schema)
    # Whoever waited has to see what the one before has made, which a snapshot taken before would hide.
    level: Literal["SERIALIZABLE", "READ COMMITTED"] = (
        "SERIALIZABLE" if engine.dialect.name == "sqlite" else "READ COMMITTED"
    )
    with engine.execution_options(isolation_level=level).connect() as connection:
        _wait_for_turn(connection)
        if schema is not None and not inspect(connection).has_schema(schema):
            connection.execute(CreateSchema(schema))
        yield connection
        connection.commit()


def script(dialect: str, revision: str = "head", *, schema: str | None = None) -> str:
    """The SQL that makes the tables in an empty database, to be read or run by somebody else.

    Args:
        dialect: "postgresql", "mysql", "mariadb" or "sqlite".
        revision: as for `migrate`.
        schema: as for `migrate`.

    Raises: as `migrate`.
    """
    check(dialect, schema)
    _position(revision)
    output = io.StringIO()
    with _ALEMBIC:
        command.upgrade(_config(output, dialect=dialect, schema=schema), revision, sql=True)
    return output.getvalue()


def current(connection: Connection, schema: str | None = None) -> str | None:
    """The revision that the tables are at; None when there are none."""
    if not inspect(connection).has_table(VERSION_TABLE, schema=schema):
        return None
    return connection.execute(select(tables(schema).version.c.version_num)).scalar_one_or_none()


def upgrade(op: Any, revision: str = "head", *, schema: str | None = None, since: str = "base") -> None:
    """Make or upgrade the tables inside a revision of the application's own history.

    Add `inbox.schema.metadata` to the application's `target_metadata`, and its `alembic check` stays quiet.

    Args:
        op: Alembic's `op`, as the revision has it.
        revision: name one, so that an old revision of yours means the same for ever; "head" is whatever is
            the newest when it runs.
        schema: PostgreSQL only: the schema of the tables.
        since: the revision to start from where the database cannot be asked (`alembic upgrade --sql`).
    """
    _walk(op, revision, schema, since, "upgrade")


def downgrade(op: Any, revision: str = "base", *, schema: str | None = None, since: str = "head") -> None:
    """Take back what `upgrade` did, inside a revision of the application's own history."""
    _walk(op, revision, schema, since, "downgrade")


def options(schema: str | None) -> dict[str, Any]:
    """What our own Alembic environment is configured with."""
    return {
        "version_table": VERSION_TABLE,
        "version_table_schema": schema,
        "include_schemas": schema is not None,
        "include_name": lambda name, kind, parents: kind != "schema" or name == schema,
        "inbox_schema": schema,
    }


def forget_base(connection: Connection, schema: str | None = None) -> None:
    """Remove an empty version table: its presence would tell `metadata.create_all` that all is there."""
    if inspect(connection).has_table(VERSION_TABLE, schema=schema) and current(connection, schema) is None:
        connection.execute(DropTable(tables(schema).version))


def _walk(op: Any, revision: str, schema: str | None, since: str, direction: str) -> None:
    context: MigrationContext = op.get_context()
    check(context.dialect.name, schema)
    end = _position(revision)
    start = _position(since) if context.as_sql else _reached(op.get_bind(), schema)
    if start == end or (start < end) != (direction == "upgrade"):
        return
    steps = _revisions()[min(start, end) : max(start, end)]
    version = tables(schema).version
    if start == 0:
        if not context.as_sql:
            forget_base(op.get_bind(), schema)
        _make_version_table(op, schema)
    with _inbox_schema(context, schema):
        for step in steps if start < end else reversed(steps):
            getattr(step.module, direction)()
    op.execute(delete(version))
    if end > 0:
        op.execute(insert(version).inline().values(version_num=op.inline_literal(_names()[end])))
    else:
        op.drop_table(version.name, schema=schema)


def _make_version_table(op: Any, schema: str | None) -> None:
    number = Column("version_num", String(32), nullable=False)
    key = PrimaryKeyConstraint("version_num", name=f"{VERSION_TABLE}_pkc")
    op.create_table(VERSION_TABLE, number, key, schema=schema)


@contextmanager
def _inbox_schema(context: MigrationContext, schema: str | None) -> Iterator[None]:
    context.opts["inbox_schema"] = schema
    try:
        yield
    finally:
        del context.opts["inbox_schema"]


def _wait_for_turn(connection: Connection) -> None:
    """Keep everybody else from migrating until this transaction, or on MySQL this session, is over."""
    if connection.dialect.name == "postgresql":
        connection.execute(select(func.pg_advisory_xact_lock(_LOCK)))
    elif connection.dialect.name == "sqlite":
        connection.begin()  # which may do more than nothing: applications listen to it
        if not getattr(connection.connection.driver_connection, "in_transaction", False):
            connection.exec_driver_sql("BEGIN IMMEDIATE")
    else:
        # DDL commits, so a transaction would not hold the lock. The pool must not get the session back.
        connection.detach()
        if connection.execute(select(func.get_lock(VERSION_TABLE, _LOCK_WAIT))).scalar_one() != 1:
            raise TransientError(f"somebody else has been migrating for {_LOCK_WAIT} seconds")


def check(dialect: str, schema: str | None) -> None:
    """Refuse a database that the revisions have not been written for."""
    if dialect not in _DIALECTS:
        raise UnsupportedDatabase(f"dialect={dialect!r}: there are tables for {', '.join(_DIALECTS)} only")
    if schema is not None and dialect != "postgresql":
        raise InvalidOption(f"schema={schema!r}: only PostgreSQL has schemas inside a database")


def _config(output: io.StringIO | None = None, **attributes: Any) -> Config:
    config = Config(output_buffer=output)
    config.set_main_option("script_location", str(_folder()).replace("%", "%%"))
    config.attributes.update(attributes)
    return config


def _folder() -> Path:
    """The Alembic environment: in the wheel beside this file, in a checkout at the top."""
    installed = Path(__file__).with_name("migrations")
    return installed if installed.is_dir() else Path(__file__).parents[1] / "migrations"


def _revisions() -> list[Script]:
    """All revisions, the oldest first."""
    return list(ScriptDirectory(str(_folder())).walk_revisions())[::-1]


def _names() -> list[str]:
    """All revisions' names, "base" and then the oldest first."""
    return ["base", *(step.revision for step in _revisions())]


def _reached(connection: Connection, schema: str | None) -> int:
    """How many revisions the tables have gone through."""
    found = current(connection, schema) or "base"
    if found not in _names():
        raise UnsupportedDatabase(f"the tables are at revision {found}, unknown to this inbox-outbox")
    return _position(found)


def _position(revision: str) -> int:
    """How many revisions lie up to this one."""
    names = _names()
    if revision == "head":
        return len(names) - 1
    if revision not in names:
        raise InvalidOption(f"revision={revision!r}: expected head or one of {', '.join(names)}")
    return names.index(revision)
