"""The truth for columns: every table of the inbox, declared once.

`metadata` holds the tables in the connection's default schema; `tables(schema)` gives the same ones in
a PostgreSQL schema of your choice. An application that keeps these tables in its own Alembic history
adds `metadata` to its `target_metadata`, and `alembic check` stays quiet.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    DateTime,
    Dialect,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
    event,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import DDL
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeDecorator, TypeEngine

REVISION = "0003"
"""The migration that these declarations correspond to."""

VERSION_TABLE = "inbox_outbox_version"
"""Where our own migrations note how far they are, apart from the application's."""

_MYSQL = ("mysql", "mariadb")
_OPTIONS: dict[str, Any] = {
    "mysql_engine": "InnoDB",
    "mysql_charset": "utf8mb4",
    "mariadb_engine": "InnoDB",
    "mariadb_charset": "utf8mb4",
}


class Bytewise(TypeDecorator[str]):
    """Text that compares byte for byte, whatever the database's collation is."""

    impl = Text
    cache_ok = True

    def __init__(self, longest: int) -> None:
        super().__init__()
        self.longest = longest

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        if dialect.name in _MYSQL:
            return dialect.type_descriptor(mysql.VARBINARY(self.longest))
        # Not through type_descriptor(), which would make it a VARCHAR on PostgreSQL.
        return Text(collation="C" if dialect.name == "postgresql" else None)

    def process_bind_param(self, value: str | None, dialect: Dialect) -> Any:
        return value.encode() if value is not None and dialect.name in _MYSQL else value

    def process_result_value(self, value: Any, dialect: Dialect) -> str | None:
        return value.decode() if isinstance(value, bytes) else value


class UtcDateTime(TypeDecorator[datetime]):
    """A point in time, always read back in UTC; databases without time zones store UTC."""

    impl = DateTime
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        if dialect.name in _MYSQL:
            return dialect.type_descriptor(mysql.DATETIME(fsp=6))
        return dialect.type_descriptor(DateTime(timezone=dialect.name == "postgresql"))

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None or dialect.name == "postgresql":
            return value
        return value.astimezone(UTC).replace(tzinfo=None)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class utcnow(FunctionElement[datetime]):  # noqa: N801 - named like SQLAlchemy's own functions
    """The database's own clock, in UTC; on PostgreSQL not `now()`, which stops when a transaction begins."""

    inherit_cache = True
    type = UtcDateTime()


@compiles(utcnow)
def _utcnow(element: utcnow, compiler: SQLCompiler, **kw: Any) -> str:
    return "clock_timestamp()"


@compiles(utcnow, *_MYSQL)
def _utcnow_mysql(element: utcnow, compiler: SQLCompiler, **kw: Any) -> str:
    return "(utc_timestamp(6))"


@compiles(utcnow, "sqlite")
def _utcnow_sqlite(element: utcnow, compiler: SQLCompiler, **kw: Any) -> str:
    return "(strftime('%Y-%m-%d %H:%M:%f', 'now'))"


def _binary(length: int) -> TypeEngine[bytes]:
    return LargeBinary().with_variant(mysql.VARBINARY(length), *_MYSQL)


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables in one schema."""

    metadata: MetaData
    message: Table
    ledger: Table
    status: Table
    version: Table


@cache
def tables(schema: str | None = None) -> Tables:
    """The tables as they stand in `schema` (None: the connection's default schema)."""
    metadata = MetaData(schema=schema)
    message = Table(
        "inbox_message",
        metadata,
        Column("consumer", Bytewise(128), nullable=False),
        Column("key", Bytewise(512), nullable=False),
        Column("accepted_at", UtcDateTime, nullable=False, server_default=utcnow()),
        Column("claim", _binary(16), nullable=False),
        Column("digest", _binary(16)),
        Column("result", Text().with_variant(mysql.MEDIUMTEXT, *_MYSQL)),
        PrimaryKeyConstraint("consumer", "key", name="inbox_message_pkey"),
        **_OPTIONS,
    )
    _named(message)
    Index("inbox_message_accepted_at", message.c.consumer, message.c.accepted_at)
    ledger, status = _ledger(metadata), _status(metadata)
    version = Table(
        VERSION_TABLE,
        metadata,
        Column("version_num", String(32), nullable=False),
        PrimaryKeyConstraint("version_num", name=f"{VERSION_TABLE}_pkc"),
    )
    stamp = DDL(f"INSERT INTO %(fullname)s (version_num) VALUES ('{REVISION}')")  # type: ignore[no-untyped-call]  # noqa: S608
    event.listen(version, "after_create", stamp)
    return Tables(metadata, message, ledger, status, version)


def _ledger(metadata: MetaData) -> Table:
    """What bulk writers have committed: one row for each partition, written in its transaction."""
    counts = ("rows_new", "rows_duplicate", "rows_repeated", "rows_dropped")
    ledger = Table(
        "inbox_ledger",
        metadata,
        Column("consumer", Bytewise(128), nullable=False),
        Column("run", Bytewise(128), nullable=False),
        Column("batch", BigInteger, nullable=False),
        Column("part", Integer, nullable=False),
        Column("parts", Integer, nullable=False),
        Column("fingerprint", _binary(16), nullable=False),
        Column("rows_read", BigInteger, nullable=False),
        *(Column(name, BigInteger, nullable=False) for name in counts),
        Column("committed_at", UtcDateTime, nullable=False, server_default=utcnow()),
        PrimaryKeyConstraint(
            "consumer", "run", "batch", "part", "parts", "fingerprint", name="inbox_ledger_pkey"
        ),
        **_OPTIONS,
    )
    total = sum((ledger.c[name] for name in counts[1:]), start=ledger.c[counts[0]])
    ledger.append_constraint(CheckConstraint(ledger.c.rows_read == total, name="inbox_ledger_adds_up"))
    Index("inbox_ledger_committed_at", ledger.c.consumer, ledger.c.committed_at)
    return ledger


def _named(table: Table) -> None:
    """Neither consumer nor key is empty."""
    for column in (table.c.consumer, table.c.key):
        table.append_constraint(CheckConstraint(column != "", name=f"{table.name}_{column.name}_not_empty"))


def _status(metadata: MetaData) -> Table:
    """Status-table mode: how far each message is, and who holds it."""
    text = Text().with_variant(mysql.MEDIUMTEXT, *_MYSQL)
    status = Table(
        "inbox_status",
        metadata,
        Column("consumer", Bytewise(128), nullable=False),
        Column("key", Bytewise(512), nullable=False),
        Column("status", String(9), nullable=False),
        Column("token", BigInteger, nullable=False),
        Column("claim", _binary(16), nullable=False),
        Column("owner", String(255), nullable=False),
        Column("lease_until", UtcDateTime),
        Column("attempts_started", Integer, nullable=False),
        Column("attempts_finished", Integer, nullable=False),
        Column("digest", _binary(16)),
        Column("payload", LargeBinary().with_variant(mysql.LONGBLOB, *_MYSQL)),
        Column("result", text),
        Column("error", text),
        Column("steps", text),
        Column("history", text),
        Column("pending_step", String(255)),
        Column("undos", Integer, nullable=False, server_default="0"),
        Column("created_at", UtcDateTime, nullable=False, server_default=utcnow()),
        Column("updated_at", UtcDateTime, nullable=False, server_default=utcnow()),
        PrimaryKeyConstraint("consumer", "key", name="inbox_status_pkey"),
        **_OPTIONS,
    )
    _named(status)
    for name, rule in STATUS_RULES.items():
        status.append_constraint(CheckConstraint(rule, name=f"inbox_status_{name}"))
    # The status first: an index that begins as the primary key does may be taken to find a single key, by a
    # plan that was made while the table was new, and then all of the consumer's entries are read.
    Index("inbox_status_updated_at", status.c.status, status.c.consumer, status.c.updated_at)
    return status


STATUS_RULES = {
    "known": "status IN ('consuming', 'consumed', 'failed', 'dead', 'halted')",
    "lease": "(status = 'consuming') = (lease_until IS NOT NULL)",
    "attempts": "attempts_finished >= 0 AND attempts_started >= attempts_finished",
    "result": "status = 'consumed' OR result IS NULL",
    "halted": "status <> 'halted' OR pending_step IS NOT NULL",
    "given_up": "status NOT IN ('dead', 'halted') OR error IS NOT NULL",
}
"""What no row of status-table mode can break, by the constraint's name."""

metadata = tables().metadata
"""The tables in the connection's default schema."""
