"""SQLite: what its schema says about our tables."""

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from sqlalchemy import Connection, Dialect, Row, Table, bindparam, text
from sqlalchemy.sql.elements import TextClause

from inbox_outbox_base.checks.catalogue import (
    Checking,
    bytewise,
    changing_triggers,
    references,
    referred_to,
    refused,
    unfilled,
    wrong_keys,
    wrong_types,
)
from inbox_outbox_base.checks.missing import schema_of
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
    SELECT CASE WHEN i.partial THEN 'partial index' ELSE 'index' END, thing.name, i.name, k.name,
           k.coll <> 'BINARY'
    FROM thing, pragma_index_list(thing.name, :schema) i, pragma_index_xinfo(i.name, :schema) k
    WHERE thing.type = 'table' AND thing.name IN :tables AND i."unique" AND k.key
    UNION ALL
    SELECT 'column', thing.name, c.name, c.type, c."notnull" * (1 + (c.dflt_value IS NULL))
    FROM thing, pragma_table_info(thing.name, :schema) c
    WHERE thing.type = 'table' AND thing.name IN :tables
    UNION ALL
    SELECT 'reference', thing.name, 'to ' || f."table", '', 0
    FROM thing, pragma_foreign_key_list(thing.name, :schema) f
    WHERE thing.type = 'table' AND thing.name IN :tables
    UNION ALL
    SELECT 'index', thing.name, 'primary key', c.name, 0
    FROM thing, pragma_table_info(thing.name, :schema) c
    WHERE thing.type = 'table' AND thing.name IN :tables AND c.pk
    UNION ALL
    SELECT 'journal', thing.name, j.journal_mode, '', 0
    FROM thing, pragma_journal_mode j WHERE thing.name IN :tables AND j.schema = :schema
    UNION ALL
    SELECT DISTINCT 'referrer', lower(k."table"), m.name, '', 0
    FROM {schema}.sqlite_master m, pragma_foreign_key_list(m.name, :schema) k, pragma_foreign_keys is_on
    WHERE m.type = 'table' AND lower(k."table") IN :tables AND k.on_delete <> 'CASCADE'
    AND is_on.foreign_keys
"""
_COMMENT = re.compile(r"--[^\n]*|/\*.*?(?:\*/|$)", re.DOTALL)
_QUOTED = re.compile(r"""'((?:[^']|'')*)'|"((?:[^"]|"")*)"|`((?:[^`]|``)*)`|\[([^]]*)\]""")
_AFTER = re.compile(r"CREATE (?:TEMP(?:ORARY)? )?TRIGGER (?:IF NOT EXISTS )?(?:\S+ ?\. ?)?[^\s.]+ AFTER ")
_ENDS_QUIETLY = re.compile(r"\bRAISE ?\( ?IGNORE\b")
_WRITES = r"\b(?:DELETE FROM|(?:UPDATE|INTO)(?: OR \w+)?) (?:\w+ ?\. ?)?{table}\b"
_WITHOUT_ROWS = re.compile(r"\)[^()]*\bWITHOUT ROWID\b[^()]*$")
"""In text without comments, quotes and capitals."""


@cache
def _catalogue(schema: str) -> TextClause:
    quoted = '"' + schema.replace('"', '""') + '"'
    return text(_CATALOGUE.replace("{schema}", quoted)).bindparams(bindparam("tables", expanding=True))


class SQLiteChecking(Checking):
    """One statement."""

    def look(self, connection: Connection, tables: Sequence[Table]) -> list[Finding]:
        schema = schema_of(connection, tables[0]) or "main"
        given = {"schema": schema, "tables": [each.name for each in tables]}
        by_table: dict[str, dict[str, list[Row[Any]]]] = defaultdict(lambda: defaultdict(list))
        for row in connection.execute(_catalogue(schema), given):
            by_table[row.place][row.kind].append(row)
        dialect = connection.dialect
        return [found for table in tables for found in _problems(table, dialect, by_table[table.name])]


def _problems(table: Table, dialect: Dialect, found: dict[str, list[Row[Any]]]) -> Iterator[Finding]:
    if found["view"]:
        yield refused(table.name, "it is a view", "create the table itself with `inbox-outbox migrate`")
        return
    if not found["table"]:
        return
    if any(row.number for row in found["table"]):
        yield refused(table.name, "it is a temporary table", "drop it, so that the real one is found")
    if any(row.detail.upper().startswith("CREATE VIRTUAL") for row in found["table"]):
        yield refused(table.name, "it is a virtual table", "create it with `inbox-outbox migrate`")
    if any(_WITHOUT_ROWS.search(_plain(row.detail)) for row in found["table"]):
        why = "it is a table WITHOUT ROWID, and purges and audits find rows by their rowid"
        yield refused(table.name, why, "create it with `inbox-outbox migrate`")
    if any(row.name == "off" for row in found["journal"]):
        why = "journal_mode=OFF, so a rollback undoes nothing for sure"
        yield refused(table.name, why, "set journal_mode to WAL or DELETE on each connection")
    if found["referrer"]:
        yield referred_to(table.name, [row.name for row in found["referrer"]])
    if changing := [row.name for row in found["trigger"] if _changes(table.name, row.detail)]:
        yield changing_triggers(table.name, changing)
    yield from references(table.name, sorted({row.name for row in found["reference"]}))
    compared = bytewise(table)
    unlike = {row.detail for row in found["index"] if row.number and row.detail in compared}
    types = {row.name: "" if row.name in unlike else row.detail or "BLOB" for row in found["column"]}
    yield from wrong_types(table, dialect, types, _holds)
    yield from unfilled(table, {row.name.lower(): row.number == 1 for row in found["column"] if row.number})
    yield from wrong_keys(table, _columns(found["index"]), _columns(found["partial index"]))


def _columns(index: Sequence[Row[Any]]) -> dict[str, frozenset[str | None]]:
    names = {row.name for row in index}
    return {name: frozenset(row.detail for row in index if row.name == name) for name in names}


def _holds(declared: str, there: str) -> bool:
    """A column's type only says what it prefers: one that prefers numbers takes the text 007 for 7."""
    also = {"DATETIME": "TEXT", "BOOLEAN": "INTEGER"}.get(declared)
    return bool(there) and _affinity(there) in (_affinity(declared), also)


def _affinity(kind: str) -> str:
    """By SQLite's rules, in their order."""
    words = {"INT": "INTEGER", "CHAR": "TEXT", "CLOB": "TEXT", "TEXT": "TEXT", "BLOB": "BLOB"}
    return next((affinity for word, affinity in words.items() if word in kind.upper()), "NUMERIC")


def _changes(table: str, trigger: str) -> bool:
    """Whether it does not run AFTER, ends the statement without an error, or writes to the table."""
    plain = _plain(trigger)
    its = re.escape(table.upper())
    return (
        not _AFTER.match(plain)
        or _ENDS_QUIETLY.search(plain) is not None
        or re.search(_WRITES.format(table=its), plain) is not None
    )


def _plain(sql: str) -> str:
    """Its words in capitals, without comments; of what is in quotes, only names of one word."""
    parts: list[str] = []
    place = 0
    while place < len(sql):
        if found := _COMMENT.match(sql, place):
            parts.append(" ")
        elif found := _QUOTED.match(sql, place):
            word = next(each for each in found.groups() if each is not None)
            parts.append(word if re.fullmatch(r"\w+", word) else "_")
        else:
            parts.append(sql[place])
        place = found.end() if found else place + 1
    return " ".join("".join(parts).upper().split())
