"""The columns and unique keys of a target table on PostgreSQL."""

from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, Row, text

from inbox_outbox_base.databases.loading import outside
from inbox_outbox_base.databases.loading_values import Target, UniqueKey, Write

_TARGETS = text("""
    SELECT a.attname AS name, coalesce(b.typname, t.typname) AS kind,
           CASE WHEN t.typtype = 'd' THEN format_type(t.oid, NULL)
                ELSE format_type(a.atttypid, NULL) END AS full,
           coalesce(nullif(a.atttypmod, -1), nullif(t.typtypmod, -1), nullif(e.typtypmod, -1)) AS modifier,
           coalesce(b.typcategory, t.typcategory) AS category,
           coalesce(eb.typname, e.typname) AS element_kind, format_type(e.oid, NULL) AS element_full,
           coalesce(eb.typcategory, e.typcategory) AS element_category,
           a.attnotnull AND NOT a.atthasdef AND a.attidentity = '' AS required,
           a.attgenerated <> '' OR a.attidentity = 'a' AS is_generated,
           CASE coalesce(b.typname, t.typname)
                WHEN 'bpchar' THEN 'bpchar'  -- with a length, it would be padded
                -- Outside the search path its operators are not found, and those of text compare.
                WHEN 'citext' THEN CASE WHEN pg_type_is_visible(coalesce(b.oid, t.oid)) THEN 'citext' END
           END AS compared,
           quote_ident(n.nspname) || '.' || quote_ident(c.collname) AS collation
    FROM pg_attribute a
    JOIN pg_type t ON t.oid = a.atttypid
    LEFT JOIN pg_type b ON b.oid = nullif(t.typbasetype, 0)
    -- An int2vector and the like have elements, but are not their arrays.
    LEFT JOIN pg_type e ON e.oid = coalesce(b.typelem, t.typelem) AND e.typarray = coalesce(b.oid, t.oid)
    LEFT JOIN pg_type eb ON eb.oid = nullif(e.typbasetype, 0)
    LEFT JOIN pg_collation c ON c.oid = a.attcollation AND c.oid <> 100  -- the database's own
    LEFT JOIN pg_namespace n ON n.oid = c.collnamespace
    WHERE a.attrelid = to_regclass(:name) AND a.attnum > 0 AND NOT a.attisdropped
    ORDER BY a.attnum
""")

_PLACE = text("""
    WITH RECURSIVE reached (oid) AS (
        SELECT to_regclass(:name)::oid
        UNION
        SELECT next.oid FROM reached CROSS JOIN LATERAL (
            SELECT inhrelid FROM pg_inherits JOIN pg_class c ON c.oid = inhparent AND c.relkind = 'p'
            WHERE inhparent = reached.oid
            UNION ALL
            -- A view writes to a table that it reads.
            SELECT d.refobjid
            FROM pg_rewrite r
            JOIN pg_depend d ON d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid
                            AND d.refclassid = 'pg_class'::regclass
            WHERE r.ev_class = reached.oid
        ) AS next (oid)
    )
    SELECT quote_ident(n.nspname) || '.' || quote_ident(c.relname) AS place,
           (SELECT min(f.oid::regclass::text) FROM reached JOIN pg_class f USING (oid)
            WHERE f.relkind = 'f') AS foreign_table
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.oid = to_regclass(:name)
""")

_UNIQUE = text("""
    SELECT c.relname AS name, key.parts,
           CASE WHEN i.indpred IS NOT NULL THEN 'is partial'
                WHEN NOT i.indimmediate THEN 'is deferrable'
                WHEN NOT i.indisvalid THEN 'is not valid'
                WHEN NOT key.has_no_null
                     -- Servers before PostgreSQL 15 have no such column.
                     AND NOT coalesce(to_jsonb(i) ->> 'indnullsnotdistinct', 'false')::boolean
                THEN 'allows NULL, and NULLs are distinct' END AS problem
    FROM pg_index i
    JOIN pg_class c ON c.oid = i.indexrelid
    CROSS JOIN LATERAL (
        -- The number of an expression is 0.
        SELECT array_agg(a.attname::text) AS parts, coalesce(bool_and(a.attnotnull), false) AS has_no_null
        FROM unnest(i.indkey::int2[]) WITH ORDINALITY AS part (number, place)
        LEFT JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = nullif(part.number, 0)
        WHERE part.place <= i.indnkeyatts
    ) AS key
    WHERE i.indrelid = to_regclass(:name) AND i.indisunique AND NOT i.indisexclusion
""")

_PARSED = set("SEIURG")
"""Categories of types that parse text: strings, enums, addresses, uuid and json and the like, ranges, shapes.
Numbers and times parse text, too, but drop digits for which they have no room."""

_CHANGED = {"name", "char", "bytea", "tsvector", "tsquery"}
"""Types of these categories that change a text."""

CLOCKS = {"timestamp", "timestamptz", "time"}


@dataclass(frozen=True, slots=True)
class PostgreSQLTarget(Target):
    """A column, and its limits: an assignment would silently cut values that exceed them."""

    length: int | None
    """Of text: characters. Spaces beyond this length are cut off silently."""
    digits: int | None
    """Of a time: fractional digits of a second. More are rounded."""
    reads_text: bool
    """Whether a CAST of text keeps it unchanged."""
    element: "PostgreSQLTarget | None" = None
    """Of an array: a column of its elements' type."""
    compared: str | None = None
    """Of text: the type that compares as the column does, if it is not `text`."""
    collation: str | None = None
    """Of text: the collation, if not the database's own; a name in SQL."""


def place(connection: Connection, write: Write) -> str:
    """The target's name with its schema; as it is given if there is no such table.

    Raises:
        ColumnMismatch: it is a foreign table, or writes to one.
    """
    name = relation(write.table_schema, write.table)
    found = connection.execute(_PLACE, {"name": name}).one_or_none()
    if found is None:
        return name
    if found.foreign_table is not None:
        raise outside(found.place, f"{found.foreign_table} is a foreign table")
    return str(found.place)


def targets(connection: Connection, write: Write) -> list[PostgreSQLTarget]:
    """The columns of the target table; none if it does not exist."""
    rows = connection.execute(_TARGETS, {"name": relation(write.table_schema, write.table)}).all()
    return [_target(row) for row in rows]


def unique_keys(connection: Connection, write: Write) -> list[UniqueKey]:
    """The unique keys and indexes of the target table."""
    rows = connection.execute(_UNIQUE, {"name": relation(write.table_schema, write.table)})
    return [UniqueKey(row.name, frozenset(row.parts), row.problem) for row in rows]


def _target(row: Row[Any]) -> PostgreSQLTarget:
    target = _described(row, row.kind, row.full, row.category)
    target = replace(target, compared=row.compared, collation=row.collation)
    if row.element_kind is None:
        return target
    return replace(target, element=_described(row, row.element_kind, row.element_full, row.element_category))


def _described(row: Row[Any], kind: str, full: str, category: str) -> PostgreSQLTarget:
    modifier = row.modifier
    if kind == "interval" and modifier is not None:
        kind = "interval of some fields"
    scale = length = digits = None
    if modifier is not None and kind == "numeric":
        scale = (((modifier - 4) & 2047) ^ 1024) - 1024  # eleven bits; the first is the sign
    elif modifier is not None and kind in ("varchar", "bpchar"):
        length = modifier - 4
    elif kind in CLOCKS:
        digits = modifier
    reads_text = category in _PARSED and kind not in _CHANGED
    return PostgreSQLTarget(
        row.name, kind, full, scale, row.required, row.is_generated, length, digits, reads_text
    )


def relation(schema: str | None, name: str | None) -> str:
    """A table's name in SQL."""
    return ".".join(quoted(part) for part in (schema, name) if part)


def quoted(name: str) -> str:
    """A quoted name in SQL. SQLAlchemy's own quoting doubles percent signs, which COPY takes literally."""
    return '"' + name.replace('"', '""') + '"'
