"""SQLite: what its schema says about our tables."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from sqlalchemy import Connection, Row, Table, bindparam, text
from sqlalchemy.sql.elements import TextClause

from inbox_outbox_base.checks.catalogue import (
    Checking,
    bytewise,
    changing_triggers,
    missing_keys,
    refused,
    wrong_text,
)
from inbox_outbox_base.words.findings import Finding

# A temporary table or trigger comes before one of the database.
_CATALOGUE = """
    WITH thing (is_temporary, type, name, place, sql) AS (
        SELECT 0, type, name, tbl_name, sql FROM {schema}.sqlite_master
        UNION ALL SELECT 1, type, name, tbl_name, sql FROM sqlite_temp_master
    )
    SELECT type AS kind, place, name, coalesce(sql, '') AS detail, is_temporary AS number
    FROM thing WHERE place IN :tables AND type IN ('table', 'view', 'trigger')
    UNION ALL
    SELECT 'index', thing.name, i.name, k.name, k.coll <> 'BINARY'
    FROM thing, pragma_index_list(thing.name, :schema) i, pragma_index_xinfo(i.name, :schema) k
    WHERE thing.type = 'table' AND thing.name IN :tables AND i."unique" AND NOT i.partial AND k.key
    UNION ALL
    SELECT 'index', thing.name, 'primary key', c.name, 0
    FROM thing, pragma_table_info(thing.name, :schema) c
    WHERE thing.type = 'table' AND thing.name IN :tables AND c.pk
"""


@cache
def _catalogue(schema: str) -> TextClause:
    quoted = '"' + schema.replace('"', '""') + '"'
    return text(_CATALOGUE.replace("{schema}", quoted)).bindparams(bindparam("tables", expanding=True))


class SQLiteChecking(Checking):
    """One statement."""

    def look(self, connection: Connection, tables: Sequence[Table]) -> list[Finding]:
        translated = connection.get_execution_options().get("schema_translate_map") or {}
        schema = translated.get(None) or "main"
        given = {"schema": schema, "tables": [each.name for each in tables]}
        by_table: dict[str, dict[str, list[Row[Any]]]] = defaultdict(lambda: defaultdict(list))
        for row in connection.execute(_catalogue(schema), given):
            by_table[row.place][row.kind].append(row)
        return [found for table in tables for found in _problems(table, by_table[table.name])]


def _problems(table: Table, found: dict[str, list[Row[Any]]]) -> Iterator[Finding]:
    if found["view"]:
        yield refused(table.name, "it is a view", "create the table itself with `inbox-outbox migrate`")
        return
    if not found["table"]:
        return
    if any(row.number for row in found["table"]):
        yield refused(table.name, "it is a temporary table", "drop it, so that the real one is found")
    if any(row.detail.upper().startswith("CREATE VIRTUAL") for row in found["table"]):
        yield refused(table.name, "it is a virtual table", "create it with `inbox-outbox migrate`")
    if changing := [row.name for row in found["trigger"] if _changes(row)]:
        yield changing_triggers(table.name, changing)
    longest = bytewise(table)
    if wrong := sorted({row.detail for row in found["index"] if row.number and row.detail in longest}):
        yield wrong_text(table.name, wrong)
    keys: dict[str, set[str | None]] = defaultdict(set)
    for row in found["index"]:
        keys[row.name].add(row.detail)
    yield from missing_keys(table, [frozenset(each) for each in keys.values()])


def _changes(trigger: Row[Any]) -> bool:
    """Whether it does not say AFTER, or can end the statement without an error."""
    words = trigger.detail.upper().split()
    return "AFTER" not in words or "RAISE(IGNORE" in "".join(words)
