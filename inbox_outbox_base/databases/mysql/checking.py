"""MySQL and MariaDB: what information_schema says about our tables. It shows what the role has a right to:
triggers only with the right TRIGGER."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import Connection, Row, Table, bindparam, text

from inbox_outbox_base.checks.catalogue import (
    Checking,
    bytewise,
    changing_triggers,
    missing_keys,
    refused,
    wrong_text,
)
from inbox_outbox_base.words.findings import Finding

# The names are converted: tables of information_schema differ in their collations.
_CATALOGUE = text("""
    SELECT 'table' AS kind, CONVERT(table_name USING utf8mb4) AS place, CONVERT(engine USING utf8mb4) AS name,
           CONVERT(table_type USING utf8mb4) AS detail, 0 AS number
    FROM information_schema.tables
    WHERE table_schema = coalesce(:schema, database()) AND table_name IN :tables
    UNION ALL
    SELECT 'column', CONVERT(table_name USING utf8mb4), CONVERT(column_name USING utf8mb4),
           CONVERT(data_type USING utf8mb4), character_octet_length
    FROM information_schema.columns
    WHERE table_schema = coalesce(:schema, database()) AND table_name IN :tables
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
    SELECT DISTINCT 'partition', CONVERT(table_name USING utf8mb4), CONVERT(partition_method USING utf8mb4),
           CONVERT(partition_expression USING utf8mb4), 0
    FROM information_schema.partitions
    WHERE table_schema = coalesce(:schema, database()) AND table_name IN :tables
      AND partition_method IS NOT NULL
""").bindparams(bindparam("tables", expanding=True))
_SESSION = text("""
    SELECT @@sql_select_limit AS sql_select_limit, @@sql_safe_updates AS sql_safe_updates,
           timestampdiff(SECOND, now(), sysdate()) AS behind
""")
_UNLIMITED = 2**32 - 1
"""The least `sql_select_limit` that is none."""
_OWN_TIME = 3_600
"""From so many seconds on, `now()` differs from the server's clock because the session has set its time."""
_GALERA = text("SHOW VARIABLES LIKE 'wsrep_on'")
_IS_READ_ONLY = text("SELECT @@global.read_only")
_TABLES = {"BASE TABLE", "SYSTEM VERSIONED"}


class MySQLChecking(Checking):
    """One statement."""

    def look(self, connection: Connection, tables: Sequence[Table]) -> list[Finding]:
        translated = connection.get_execution_options().get("schema_translate_map") or {}
        given = {"schema": translated.get(None), "tables": [each.name for each in tables]}
        by_table: dict[str, dict[str, list[Row[Any]]]] = defaultdict(lambda: defaultdict(list))
        for row in connection.execute(_CATALOGUE, given):
            by_table[row.place][row.kind].append(row)
        is_mariadb = bool(getattr(connection.dialect, "is_mariadb", False))
        return [
            found
            for table in tables
            for found in (
                *_problems(table, by_table[table.name]),
                *_prunes(by_table[table.name], is_mariadb=is_mariadb),
            )
        ]

    def session(self, connection: Connection) -> list[Finding]:
        found = connection.execute(_SESSION).one()
        wrong = {
            "sql_select_limit": f"={found.sql_select_limit} hides rows"
            * (found.sql_select_limit < _UNLIMITED),
            "sql_safe_updates": "=1 forbids statements of ours" * found.sql_safe_updates,
            "timestamp": " is set, so times are wrong" * (abs(found.behind) >= _OWN_TIME),
        }
        to_do = "take it out of init_command, or of the server's configuration"
        return [Finding("session", "refused", f"{name}{why}; {to_do}") for name, why in wrong.items() if why]

    def said(self, connection: Connection) -> list[Finding]:
        if ("wsrep_on", "ON") not in {tuple(row) for row in connection.execute(_GALERA)}:
            return []
        why = (
            "wsrep_on=ON: if several nodes take writes, messages of a key published on one node after "
            "another can leave in another order; publish each key on one node, let its transactions change a "
            "common row, or set wsrep_sync_wait=7 and read first; run `migrate` on one node at a time"
        )
        return [Finding("Galera", "said", why)]

    def is_read_only(self, connection: Connection) -> bool:
        return bool(connection.execute(_IS_READ_ONLY).scalar_one())


def _problems(table: Table, found: dict[str, list[Row[Any]]]) -> Iterator[Finding]:
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
    longest = bytewise(table)
    wrong = [row.name for row in found["column"] if not _keeps_bytes(row, longest.get(row.name, 0))]
    if wrong:
        yield wrong_text(table.name, wrong)
    keys: dict[str, set[str | None]] = defaultdict(set)
    for row in found["index"]:
        keys[row.name].add(row.detail if row.number is None else None)  # a part of a column is no column
    yield from missing_keys(table, [frozenset(each) for each in keys.values()])


def _prunes(found: dict[str, list[Row[Any]]], *, is_mariadb: bool) -> Iterator[Finding]:
    """MySQL looks for a list of keys in too few of these partitions: 9.7 finds 6 of 20 rows."""
    for row in found["partition"]:
        if not is_mariadb and row.name.endswith("KEY") and "," in row.detail:
            why = f"it is partitioned by {row.name} ({row.detail}): MySQL does not find all keys of a list"
            yield refused(row.place, why, "partition it by KEY of one column")


def _keeps_bytes(column: Row[Any], longest: int) -> bool:
    return not longest or (column.detail == "varbinary" and column.number >= longest)
