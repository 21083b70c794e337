"""The columns and unique keys of a target table on PostgreSQL."""

from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, Row, text

from inbox_outbox_base.databases.loading import outside
from inbox_outbox_base.databases.loading_values import Target, UniqueKey, Write
from inbox_outbox_base.errors.spark import ColumnMismatch

_TARGETS = text("""
    WITH RECURSIVE part (number, step, is_element, oid, modifier) AS (
        SELECT attnum, 0, false, atttypid, atttypmod
        FROM pg_attribute WHERE attrelid = to_regclass(:name) AND attnum > 0 AND NOT attisdropped
        UNION ALL
        -- Beneath a domain, which may be made of a domain; then, of an array, its elements.
        SELECT part.number, part.step + 1, part.is_element OR t.typtype <> 'd',
               coalesce(e.oid, t.typbasetype),
               CASE WHEN part.modifier = -1 THEN t.typtypmod ELSE part.modifier END
        FROM part
        JOIN pg_type t ON t.oid = part.oid
        -- An int2vector and the like have elements, but are not their arrays.
        LEFT JOIN pg_type e ON t.typtype <> 'd' AND e.oid = t.typelem AND e.typarray = t.oid
        WHERE t.typtype = 'd' OR (e.oid IS NOT NULL AND NOT part.is_element)
    ), known AS (
        SELECT part.*, format_type(part.oid, NULL) AS full, pg_type_is_visible(part.oid) AS is_visible,
               row_number() OVER (PARTITION BY number, is_element ORDER BY step) AS from_outside,
               row_number() OVER (PARTITION BY number, is_element ORDER BY step DESC) AS from_inside,
               CASE WHEN t.typtype = 'e' THEN 'enum'
                    WHEN n.nspname = 'pg_catalog' OR (t.typname = 'citext' AND t.typcategory = 'S')
                    THEN t.typname
                    -- Another type may have the name of one that is known here.
                    ELSE n.nspname || '.' || t.typname END AS kind
        FROM part JOIN pg_type t ON t.oid = part.oid JOIN pg_namespace n ON n.oid = t.typnamespace
    )
    SELECT a.attname AS name, base.kind, base.modifier, outside.full,
           element.kind AS element_kind, element.modifier AS element_modifier,
           element_outside.full AS element_full,
           -- COPY, which is not used for views, would put NULL into a domain that is NOT NULL.
           (a.attnotnull OR (place.relkind IN ('r', 'p') AND EXISTS (
               SELECT FROM part JOIN pg_type t USING (oid)
               WHERE part.number = a.attnum AND NOT is_element AND t.typnotnull)))
           AND NOT a.atthasdef AND a.attidentity = ''
           AND NOT EXISTS (SELECT FROM pg_type t WHERE t.oid = a.atttypid AND t.typdefault IS NOT NULL)
           AS required,
           a.attgenerated <> '' OR a.attidentity = 'a' AS is_generated,
           CASE base.kind
                WHEN 'bpchar' THEN 'bpchar'  -- with a length, it would be padded
                -- Outside the search path its operators are not found, and those of text compare.
                WHEN 'citext' THEN CASE WHEN base.is_visible THEN 'citext' END
           END AS compared,
           quote_ident(n.nspname) || '.' || quote_ident(c.collname) AS collation
    FROM pg_attribute a
    JOIN pg_class place ON place.oid = a.attrelid
    JOIN known outside ON outside.number = a.attnum AND NOT outside.is_element AND outside.from_outside = 1
    JOIN known base ON base.number = a.attnum AND NOT base.is_element AND base.from_inside = 1
    LEFT JOIN known element ON element.number = a.attnum AND element.is_element AND element.from_inside = 1
    LEFT JOIN known element_outside ON element_outside.number = a.attnum AND element_outside.is_element
                                   AND element_outside.from_outside = 1
    LEFT JOIN pg_collation c ON c.oid = a.attcollation AND c.oid <> 100  -- the database's own
    LEFT JOIN pg_namespace n ON n.oid = c.collnamespace
    WHERE a.attrelid = to_regclass(:name)
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
            WHERE f.relkind = 'f') AS foreign_table,
           (SELECT min(u.oid::regclass::text) FROM reached JOIN pg_class u USING (oid)
            -- A view may read one without writing to it.
            WHERE u.relpersistence = 'u' AND (u.oid = c.oid OR u.relispartition)) AS unlogged_table
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
                THEN 'allows NULL, and NULLs are distinct' END AS problem,
           coalesce(to_jsonb(i) ->> 'indnullsnotdistinct', 'false')::boolean
           AND i.indpred IS NULL AND i.indisvalid AS equates_nulls
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

_PARSED = {
    *("text", "varchar", "bpchar", "citext", "enum"),
    *("uuid", "inet", "cidr", "macaddr", "macaddr8", "json", "jsonb", "xml"),
    *("int4range", "int8range", "numrange", "int4multirange", "int8multirange", "nummultirange"),
}
"""Types that keep what a text says, or refuse it. Others drop digits for which they have no room, such as
ranges of times and shapes, or are not known: extensions have types that round."""

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
        ColumnMismatch: it is a foreign or an unlogged table, or writes to one.
    """
    name = relation(write.table_schema, write.table)
    found = connection.execute(_PLACE, {"name": name}).one_or_none()
    if found is None:
        return name
    if found.foreign_table is not None:
        raise outside(found.place, f"{found.foreign_table} is a foreign table")
    if found.unlogged_table is not None:
        raise ColumnMismatch(
            f"table {found.place}: {found.unlogged_table} is unlogged: a crash of the server would empty it, "
            "and its keys would stay taken"
        )
    return str(found.place)


def targets(connection: Connection, write: Write) -> list[PostgreSQLTarget]:
    """The columns of the target table; none if it does not exist."""
    rows = connection.execute(_TARGETS, {"name": relation(write.table_schema, write.table)}).all()
    return [_target(row) for row in rows]


def unique_keys(connection: Connection, write: Write) -> list[UniqueKey]:
    """The unique keys and indexes of the target table."""
    rows = connection.execute(_UNIQUE, {"name": relation(write.table_schema, write.table)})
    return [UniqueKey(row.name, frozenset(row.parts), row.problem, row.equates_nulls) for row in rows]


def _target(row: Row[Any]) -> PostgreSQLTarget:
    target = _described(row, row.kind, row.full, row.modifier)
    target = replace(target, compared=row.compared, collation=row.collation)
    if row.element_kind is None:
        return target
    return replace(target, element=_described(row, row.element_kind, row.element_full, row.element_modifier))


def _described(row: Row[Any], kind: str, full: str, stored: int) -> PostgreSQLTarget:
    modifier = None if stored == -1 else stored
    if kind == "interval" and modifier is not None:
        kind = "interval of some fields"
    scale = length = digits = None
    if modifier is not None and kind == "numeric":
        scale = (((modifier - 4) & 2047) ^ 1024) - 1024  # eleven bits; the first is the sign
    elif modifier is not None and kind in ("varchar", "bpchar"):
        length = modifier - 4
    elif kind in CLOCKS:
        digits = modifier
    return PostgreSQLTarget(
        row.name, kind, full, scale, row.required, row.is_generated, length, digits, kind in _PARSED
    )


def relation(schema: str | None, name: str | None) -> str:
    """A table's name in SQL."""
    return ".".join(quoted(part) for part in (schema, name) if part)


def quoted(name: str) -> str:
    """A quoted name in SQL. SQLAlchemy's own quoting doubles percent signs, which COPY takes literally."""
    return '"' + name.replace('"', '""') + '"'
