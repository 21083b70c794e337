"""MySQL and MariaDB: what information_schema says about our tables. It shows what the role has a right to:
triggers only with the right TRIGGER."""

import re
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Dialect, Row, Table, bindparam, text

from inbox_outbox_base.checks.catalogue import (
    ADDED_BY_RELAYS,
    Checking,
    changing_triggers,
    incomplete,
    references,
    referred_to,
    refused,
    unfilled,
    wrong_keys,
    wrong_types,
)
from inbox_outbox_base.checks.indexes import FoundIndex
from inbox_outbox_base.checks.missing import schema_of
from inbox_outbox_base.databases.taking_statements import clock
from inbox_outbox_base.words.findings import Finding

from .cluster import is_node

# The names are converted: tables of information_schema differ in their collations.
_CATALOGUE = text("""
    SELECT 'table' AS kind, CONVERT(table_name USING utf8mb4) AS place, CONVERT(engine USING utf8mb4) AS name,
           CONVERT(table_type USING utf8mb4) AS detail, 0 AS number
    FROM information_schema.tables
    WHERE table_schema = coalesce(:schema, database()) AND table_name IN :tables
    UNION ALL
    SELECT 'column', CONVERT(table_name USING utf8mb4), CONVERT(column_name USING utf8mb4),
           CONVERT(concat_ws(' ', column_type, character_set_name) USING utf8mb4),
           -- 1: the server fills it. 2: it does not. Outside strict mode it fills every column.
           CASE WHEN is_nullable = 'YES' THEN 0
                WHEN column_default IS NULL AND extra NOT LIKE '%auto_increment%'
                     AND extra NOT LIKE '%GENERATED%' AND @@sql_mode LIKE '%STRICT%' THEN 2
                ELSE 1 END
    FROM information_schema.columns
    WHERE table_schema = coalesce(:schema, database()) AND table_name IN :tables
    UNION ALL
    SELECT 'reference', CONVERT(table_name USING utf8mb4), CONVERT(constraint_name USING utf8mb4), '', 0
    FROM information_schema.table_constraints
    WHERE table_schema = coalesce(:schema, database()) AND table_name IN :tables
      AND constraint_type = 'FOREIGN KEY'
    UNION ALL
    SELECT 'trigger', CONVERT(event_object_table USING utf8mb4), CONVERT(trigger_name USING utf8mb4),
           '', 0
    FROM information_schema.triggers
    WHERE event_object_schema = coalesce(:schema, database()) AND event_object_table IN :tables
      AND action_timing = 'BEFORE'
    UNION ALL
    SELECT 'index', CONVERT(table_name USING utf8mb4), CONVERT(index_name USING utf8mb4),
           CONVERT(column_name USING utf8mb4), sub_part
    FROM information_schema.statistics
    WHERE table_schema = coalesce(:schema, database()) AND table_name IN :tables AND non_unique = 0
    UNION ALL
    SELECT 'partition', CONVERT(table_name USING utf8mb4), CONVERT(partition_method USING utf8mb4),
           CONVERT(partition_expression USING utf8mb4),
           max(partition_description LIKE 'MAXVALUE%' OR partition_description = 'DEFAULT')
    FROM information_schema.partitions
    WHERE table_schema = coalesce(:schema, database()) AND table_name IN :tables
      AND partition_method IS NOT NULL
    GROUP BY 2, 3, 4
    UNION ALL
    SELECT 'referrer', CONVERT(referenced_table_name USING utf8mb4), CONVERT(table_name USING utf8mb4),
           CONVERT(constraint_name USING utf8mb4), 0
    FROM information_schema.referential_constraints
    WHERE unique_constraint_schema = coalesce(:schema, database()) AND referenced_table_name IN :tables
      AND delete_rule <> 'CASCADE'
""").bindparams(bindparam("tables", expanding=True))
_SESSION = text("""
    SELECT @@sql_select_limit AS sql_select_limit, @@sql_safe_updates AS sql_safe_updates,
           timestampdiff(SECOND, now(), sysdate()) AS behind
""")
# All columns: servers name the one about use differently, and old ones lack it.
_INDEXES = text("""
    SELECT * FROM information_schema.statistics
    WHERE table_schema = coalesce(:schema, database()) AND table_name = :table
""")
_UNUSED = {
    "is_visible": ("NO", "INVISIBLE", "VISIBLE"),
    "ignored": ("YES", "IGNORED", "NOT IGNORED"),
}
"""MySQL's column and MariaDB's: its value for an index that is not used, the word, and what to type."""
_UNLIMITED = 2**32 - 1
"""A larger `sql_select_limit`, or this one, limits nothing."""
_OWN_TIME = 3_600
"""A session whose `now()` is so many seconds from the server's clock has set a time of its own."""
_IS_READ_ONLY = text("SELECT @@global.read_only")
_ASTRAY = 1.0
"""Seconds by which the clock of a node may differ from this machine's before that is said."""
_TABLES = {"BASE TABLE", "SYSTEM VERSIONED"}
_WHOLE = ("tinyint", "smallint", "mediumint", "int", "bigint")
"""The types of whole numbers, the smallest first."""
_SHORT = {"BOOL": "tinyint", "INTEGER": "int"}
_LONG_TEXT = ("mediumtext", "longtext")


class MySQLChecking(Checking):
    """One statement."""

    named_indexes = ("outbox_message_bucket",)  # after FORCE INDEX

    def look(self, connection: Connection, tables: Sequence[Table]) -> list[Finding]:
        given = {"schema": schema_of(connection, tables[0]), "tables": [each.name for each in tables]}
        by_table: dict[str, dict[str, list[Row[Any]]]] = defaultdict(lambda: defaultdict(list))
        for row in connection.execute(_CATALOGUE, given):
            by_table[row.place][row.kind].append(row)
        is_mariadb = bool(getattr(connection.dialect, "is_mariadb", False))
        return [
            found
            for table in tables
            for found in (
                *_problems(table, connection.dialect, by_table[table.name]),
                *_partitions(by_table[table.name], is_mariadb=is_mariadb),
            )
        ]

    def session(self, connection: Connection) -> list[Finding]:
        found = connection.execute(_SESSION).one()
        wrong = []
        if found.sql_select_limit < _UNLIMITED:
            wrong.append(f"sql_select_limit={found.sql_select_limit} hides rows")
        if found.sql_safe_updates:
            wrong.append("sql_safe_updates=1 forbids statements of ours")
        if abs(found.behind) >= _OWN_TIME:
            wrong.append("timestamp is set, so times are wrong")
        to_do = "take it out of init_command, or of the server's configuration"
        return [Finding("session", "refused", f"{each}; {to_do}") for each in wrong]

    def said(self, connection: Connection) -> list[Finding]:
        if not is_node(connection):
            return []
        why = (
            "wsrep_on=ON: if several nodes take writes, messages of a key published on one node after "
            "another can leave in another order; publish each key on one node, let its transactions change a "
            "common row, or set wsrep_sync_wait=7 and read first"
        )
        found = [Finding("Galera", "said", why)]
        if abs(ahead := _ahead(connection)) >= _ASTRAY:
            apart = (
                f"this node's clock is {abs(ahead):.1f} s {'ahead of' if ahead > 0 else 'behind'} this "
                "machine's: nodes whose clocks differ take leases over too early, so synchronise them"
            )
            found.append(Finding("Galera", "said", apart))
        return found

    def is_read_only(self, connection: Connection) -> bool:
        return bool(connection.execute(_IS_READ_ONLY).scalar_one())

    def _indexes(self, connection: Connection, table: Table) -> Iterator[FoundIndex]:
        # SQLAlchemy does not find those that MariaDB ignores.
        given = {"schema": schema_of(connection, table), "table": table.name}
        by_name: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for row in connection.execute(_INDEXES, given).mappings():
            said = {name.lower(): value for name, value in row.items()}
            by_name[said["index_name"]].append(said)
        quote = connection.dialect.identifier_preparer
        for name, rows in by_name.items():
            columns = tuple(map(_column, sorted(rows, key=lambda row: row["seq_in_index"])))
            for column, (value, why, word) in _UNUSED.items():
                if rows[0].get(column) == value:
                    place = quote.format_table(table)
                    mending = f"ALTER TABLE {place} ALTER INDEX {quote.quote(name)} {word}"
                    yield FoundIndex(name, columns, unused=why, mending=mending)
                    break
            else:
                yield FoundIndex(name, columns)


def _ahead(connection: Connection) -> float:
    """How many seconds the server's clock is ahead of this machine's, at least; negative if it is behind."""
    before = time.time()
    server = connection.execute(clock()).scalar_one().timestamp()
    after = time.time()
    return float(server - after if server > after else min(0.0, server - before))


def _column(row: Mapping[str, Any]) -> str | None:
    is_whole = row["sub_part"] is None and row["collation"] == "A" and row["index_type"] == "BTREE"
    return row["column_name"] if is_whole else None


def _problems(table: Table, dialect: Dialect, found: dict[str, list[Row[Any]]]) -> Iterator[Finding]:
    if not found["table"]:
        yield Finding(f"table {table.name}", "not tried", "it does not exist, or no right to it")
        return
    [itself] = found["table"]
    if itself.detail not in _TABLES:
        yield refused(table.name, f"it is a {itself.detail.lower()}", "create it with `inbox-outbox migrate`")
        return
    if itself.name != "InnoDB":
        why = f"its engine is {itself.name}, which cannot roll back"
        yield refused(table.name, why, "run ALTER TABLE ... ENGINE=InnoDB")
    if found["trigger"]:
        yield changing_triggers(table.name, [row.name for row in found["trigger"]])
    yield from wrong_types(table, dialect, {row.name: row.detail for row in found["column"]}, _holds)
    # In the database, the names of columns have no case.
    yield from unfilled(table, {row.name.lower(): row.number == 1 for row in found["column"] if row.number})
    yield from references(table.name, [row.name for row in found["reference"]])
    if found["referrer"]:
        yield referred_to(table.name, [f"{row.name}.{row.detail}" for row in found["referrer"]])
    keys: dict[str, set[str | None]] = defaultdict(set)
    for row in found["index"]:
        # A part of a column is no column. Names of columns have no case.
        keys[row.name].add(row.detail.lower() if row.number is None else None)
    yield from wrong_keys(table, {name: frozenset(each) for name, each in keys.items()}, {})


def _partitions(found: dict[str, list[Row[Any]]], *, is_mariadb: bool) -> Iterator[Finding]:
    for row in found["partition"]:
        # MySQL 9.7 looks for a list of keys in too few partitions, and finds 6 of 20 rows.
        if not is_mariadb and row.name.endswith("KEY") and "," in row.detail:
            why = f"it is partitioned by {row.name} ({row.detail}): MySQL does not find all keys of a list"
            yield refused(row.place, why, "partition it by KEY of one column")
        if row.place in ADDED_BY_RELAYS and row.name.startswith(("RANGE", "LIST")) and not row.number:
            yield from incomplete(row.place, [row.place])


def _holds(declared: str, there: str) -> bool:
    """Outside strict mode, the server cuts what is too long, and replaces characters that it lacks."""
    (name, size), (kind, length) = _parsed(_SHORT.get(declared, declared.lower())), _parsed(there)
    if name in _WHOLE:
        return kind in _WHOLE[_WHOLE.index(name) :] and "unsigned" not in there
    is_as_long = kind == name and length >= size
    if name in ("varchar", *_LONG_TEXT):
        return (is_as_long or kind in _LONG_TEXT) and "utf8mb4" in there
    return is_as_long


def _parsed(kind: str) -> tuple[str, int]:
    """A type's name, and its length or digits."""
    found = re.match(r"(\w+)(?:\((\d+)\))?", kind.lower())
    return (found[1], int(found[2] or 0)) if found else (kind, 0)
