"""The version table: which revision our tables are at."""

from typing import Any

from sqlalchemy import Column, Connection, PrimaryKeyConstraint, String, delete, insert, inspect, select
from sqlalchemy.schema import CreateSchema, DropTable

from inbox_outbox_base.databases.registry import migrating
from inbox_outbox_base.errors.inbox import UnsupportedDatabase
from inbox_outbox_base.tables.inbox import VERSION_TABLE, tables

from . import revisions
from .one_at_a_time import make_schema


def current(connection: Connection, schema: str | None = None) -> str | None:
    """The revision that the tables are at; None when there are none."""
    if not inspect(connection).has_table(VERSION_TABLE, schema=schema):
        return None
    return connection.execute(select(tables(schema).version.c.version_num)).scalar_one_or_none()


def forget_base(connection: Connection, schema: str | None = None) -> None:
    """Remove an empty version table: if it exists, `metadata.create_all` assumes that all tables do."""
    if inspect(connection).has_table(VERSION_TABLE, schema=schema) and current(connection, schema) is None:
        connection.execute(DropTable(tables(schema).version))


def prepare(op: Any, schema: str | None, *, as_sql: bool) -> None:
    """Make the schema and the version table."""
    if not as_sql:
        make_schema(op.get_bind(), schema)
        forget_base(op.get_bind(), schema)
    elif schema is not None:
        op.execute(CreateSchema(schema, if_not_exists=True))
    # The table that Alembic itself would make.
    number = Column("version_num", String(32), nullable=False)
    key = PrimaryKeyConstraint("version_num", name=f"{VERSION_TABLE}_pkc")
    op.create_table(VERSION_TABLE, number, key, schema=schema)


def note(op: Any, schema: str | None, number: int) -> None:
    """Record the tables' revision after each step. If a step's DDL has committed, this is committed, too: the
    next step may still fail."""
    version = tables(schema).version
    op.execute(delete(version))
    if number > 0:
        name = op.inline_literal(revisions.names()[number])
        op.execute(insert(version).inline().values(version_num=name))
    context = op.get_context()
    if migrating(context.dialect.name).commits_ddl and not context.as_sql:
        op.execute("COMMIT")


def reached(connection: Connection, schema: str | None) -> int:
    """How many revisions the tables have gone through."""
    found = current(connection, schema) or "base"
    if found not in revisions.names():
        raise UnsupportedDatabase(
            f"the tables are at revision {found}, unknown to this version of inbox-outbox"
        )
    if found == "base" and (present := revisions.there(connection, schema)):
        raise UnsupportedDatabase(
            f"tables of {', '.join(sorted(present))} exist, but {VERSION_TABLE} names no revision: none of "
            "our migrations created them (see `Autogenerate` in docs/tables.md), or one died in its first "
            "revision where DDL cannot be rolled back (see `Waiting`)"
        )
    return revisions.position(found)
