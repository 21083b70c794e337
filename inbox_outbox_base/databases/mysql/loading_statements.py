"""MySQL's and MariaDB's statements, in SQLAlchemy's terms."""

from collections.abc import Sequence
from functools import cache
from typing import Any

from sqlalchemy import (
    Column,
    LargeBinary,
    MetaData,
    Select,
    Table,
    Update,
    bindparam,
    exists,
    func,
    literal_column,
    null,
    select,
    text,
    update,
)
from sqlalchemy.dialects.mysql import Insert

from inbox_outbox_base.databases.loading import is_newer
from inbox_outbox_base.databases.results import Upsert
from inbox_outbox_base.tables.columns import binary
from inbox_outbox_base.tables.inbox import Bytewise, Tables

GIVEN = Table(
    "inbox_keys",
    MetaData(),
    Column("key", Bytewise(512), primary_key=True),
    Column("digest", binary(16)),
    prefixes=["TEMPORARY"],
    mysql_engine="InnoDB",
    mariadb_engine="InnoDB",
)
# Without the word TEMPORARY it would commit the transaction.
FORGET = text("DROP TEMPORARY TABLE IF EXISTS inbox_keys")
SERVER = text(
    "SELECT @@local_infile AS loads, @@collation_database AS collation, @@max_allowed_packet AS largest, "
    "@@character_set_client AS charset"
)
LIMITS = text("""
    SET SESSION innodb_lock_wait_timeout = :lock_wait, SESSION lock_wait_timeout = :lock_wait,
        SESSION wait_timeout = :idle, SESSION time_zone = '+00:00',
        SESSION sql_mode = concat(replace(@@sql_mode, 'EMPTY_STRING_IS_NULL', ''),
            ',STRICT_ALL_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE,ERROR_FOR_DIVISION_BY_ZERO,NO_AUTO_VALUE_ON_ZERO')
""")
# On MariaDB it limits all statements; on MySQL only SELECTs, so writes have only the limit on locks.
STATEMENT_LIMIT = {
    True: text("SET SESSION max_statement_time = :milliseconds / 1000"),
    False: text("SET SESSION max_execution_time = :milliseconds"),
}
# A view has no engine.
PLACE = text("""
    SELECT concat(table_schema, '.', table_name) AS place, engine AS engine
    FROM information_schema.tables
    WHERE table_schema = coalesce(:schema, database()) AND table_name = :name
""")
TARGETS = text("""
    SELECT column_name AS name, data_type AS kind, column_type AS full, numeric_scale AS scale,
           is_nullable = 'YES' AS nullable, column_default IS NOT NULL AS has_default, extra AS extra,
           coalesce(generation_expression, '') <> '' AS is_generated,
           coalesce(character_maximum_length, 0) AS length,
           datetime_precision AS digits, collation_name AS collation
    FROM information_schema.columns
    WHERE table_schema = coalesce(:schema, database()) AND table_name = :name
    ORDER BY ordinal_position
""")
UNIQUE = text("""
    SELECT index_name AS name, column_name AS part, sub_part IS NULL AS is_whole,
           nullable = 'YES' AS is_nullable
    FROM information_schema.statistics
    WHERE table_schema = coalesce(:schema, database()) AND table_name = :name AND NOT non_unique
""")
SLOT = text("SELECT get_lock(:name, 0)")


def _unchanged(column: Column[Any]) -> Any:
    """Keeps the value, and sets the insert id to 1, which shows that the row existed.

    The row count cannot show it: SQLAlchemy makes the server count the rows it found, not those it changed.
    """
    return getattr(func, "if")(func.last_insert_id(literal_column("1")), column, column)


@cache
def begin(tables: Tables) -> Insert:
    """Insert the ledger's row, unless it exists. The insert id is the row's id, or 0 if it existed."""
    rows_read = tables.ledger.c.rows_read
    unchanged = getattr(func, "if")(func.last_insert_id(literal_column("0")), rows_read, rows_read)
    return Insert(tables.ledger).on_duplicate_key_update(rows_read=unchanged)


@cache
def add(tables: Tables) -> Insert:
    """Insert the given keys, in order; a key that exists, or that another transaction commits first, stays.
    The answer's insert id is `token`, which is not 0, if all went in: no trigger can know that number."""
    c = tables.message.c
    shared = (bindparam("consumer", type_=c.consumer.type), bindparam("claim", type_=LargeBinary))
    # Only with the first key, because the token of a later row would hide an earlier key that exists.
    token = func.last_insert_id(bindparam("token"))
    is_told = (GIVEN.c.key != bindparam("first", type_=GIVEN.c.key.type)) | (token != 0)
    digest = getattr(func, "if")(is_told, GIVEN.c.digest, null())
    rows = select(*shared, GIVEN.c.key, digest).order_by(GIVEN.c.key)
    added = Insert(tables.message).from_select(["consumer", "claim", "key", "digest"], rows)
    return added.on_duplicate_key_update(claim=_unchanged(c.claim))


def _find(tables: Tables) -> Select[Any]:
    c = tables.message.c
    return select(c.key, c.claim, c.load, c.digest).where(
        c.consumer == bindparam("consumer", type_=c.consumer.type)
    )


@cache
def find_few(tables: Tables) -> Select[Any]:
    """Which of a few keys exist."""
    return _find(tables).where(tables.message.c.key.in_(bindparam("keys", expanding=True)))


@cache
def find_given(tables: Tables) -> Select[Any]:
    """Which of the given keys exist: it goes through the sorted keys, and looks each up in the index."""
    joined = GIVEN.join(tables.message, tables.message.c.key == GIVEN.c.key)
    return _find(tables).select_from(joined).prefix_with("STRAIGHT_JOIN")


@cache
def others(tables: Tables) -> Select[Any]:
    """The given keys that others have. It locks only rows that this transaction has locked already, and so
    sees the newest rows, even if the snapshot is older."""
    claim = tables.message.c.claim
    return find_given(tables).where(claim != bindparam("claim", type_=LargeBinary)).with_for_update()


def add_missing(target: Table, names: Sequence[str], rows: Select[Any], key: Sequence[str]) -> Insert:
    """Insert the rows whose key is not in the target."""
    given, there = rows.subquery("given"), target.alias("there")
    same = (there.c[name] == given.c[name] for name in key)
    missing = select(given).where(~exists().where(*same))
    added = Insert(target).from_select(list(names), missing)
    return added.execution_options(preserve_rowcount=True)


def one_of_each(rows: Select[Any], names: Sequence[str], key: Sequence[str]) -> Select[Any]:
    """One row of each key, as the target's collations compare keys."""
    given = rows.subquery("several")
    place = func.row_number().over(partition_by=[given.c[name] for name in key])
    ranked = select(given, place.label("inbox_place")).subquery("placed")
    return select(*(ranked.c[name] for name in names)).where(ranked.c.inbox_place == 1)


def update_older(target: Table, names: Sequence[str], rows: Select[Any], how: Upsert) -> Update:
    """Update the rows of the target that are older than the given ones."""
    given = rows.subquery("given")
    same = (target.c[name] == given.c[name] for name in how.key)
    values = {name: given.c[name] for name in names if name not in how.key}
    newer = is_newer(given.c[how.version], target.c[how.version])
    return update(target).values(values).where(*same, newer).execution_options(preserve_rowcount=True)
