"""Which Arrow types go into which columns of PostgreSQL.

What is of exactly the same type may be copied straight into the target. The rest is CAST, but never to a type
with a length, which a CAST would cut to; assignment then raises an error for what is too long.
"""

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import Connection, text

from .. import _arrow
from .._settings import Settings
from ._database import Column, Target, unfit, unknown

_TARGETS = text("""
    SELECT a.attname AS name, coalesce(b.typname, t.typname) AS kind,
           CASE WHEN t.typtype = 'd' THEN format_type(t.oid, NULL)
                ELSE format_type(a.atttypid, NULL) END AS full,
           CASE WHEN coalesce(b.typname, t.typname) = 'numeric'
                     AND coalesce(nullif(a.atttypmod, -1), nullif(t.typtypmod, -1)) IS NOT NULL
                THEN (coalesce(nullif(a.atttypmod, -1), t.typtypmod) - 4) & 2047 END AS scale,
           a.attnotnull AND NOT a.atthasdef AND a.attidentity = '' AS required,
           t.typtype = 'd' AS is_domain, a.attgenerated <> '' AS is_generated
    FROM pg_attribute a
    JOIN pg_type t ON t.oid = a.atttypid
    LEFT JOIN pg_type b ON b.oid = nullif(t.typbasetype, 0)
    WHERE a.attrelid = to_regclass(:name) AND a.attnum > 0 AND NOT a.attisdropped
    ORDER BY a.attnum
""")

_STAGED: list[tuple[Callable[[pa.DataType], bool], str, str]] = [
    (pa.types.is_boolean, "boolean", "bool"),
    (pa.types.is_int8, "smallint", "int2"),
    (pa.types.is_int16, "smallint", "int2"),
    (pa.types.is_int32, "integer", "int4"),
    (pa.types.is_int64, "bigint", "int8"),
    (pa.types.is_float32, "real", "float4"),
    (pa.types.is_float64, "double precision", "float8"),
    (pa.types.is_decimal, "numeric", "numeric"),
    (pa.types.is_string, "text", "text"),
    (pa.types.is_binary, "bytea", "bytea"),
    (pa.types.is_date32, "date", "date"),
    (lambda kind: _is_timestamp(kind, zoned=True), "timestamp with time zone", "timestamptz"),
    (lambda kind: _is_timestamp(kind, zoned=False), "timestamp without time zone", "timestamp"),
    (pa.types.is_time64, "time without time zone", "time"),
    (pa.types.is_duration, "interval", "interval"),
]
_WIDER = {
    "int2": {"int4", "int8", "numeric", "float4", "float8"},
    "int4": {"int2", "int8", "numeric", "float8"},
    "int8": {"int2", "int4", "numeric"},
    "float4": {"float8"},
    "float8": set(),
    "date": {"timestamp"},
}
"""Where else a type may go: every value is kept, or the server raises an error."""


def targets(connection: Connection, settings: Settings) -> list[Target]:
    """The columns of the target table, none if it is not there."""
    rows = connection.execute(_TARGETS, {"name": regclass(connection, settings)}).all()
    return [
        Target(row.name, "generated" if row.is_generated else row.kind, row.full, row.scale, row.required)
        for row in rows
    ]


def regclass(connection: Connection, settings: Settings) -> str:
    """The target's name as `to_regclass` reads it."""
    quote = connection.dialect.identifier_preparer.quote_identifier
    return ".".join(quote(part) for part in (settings.table_schema, settings.table) if part)


def column(field: pa.Field, target: Target | None) -> Column:
    """How a column travels to its target, or without one to a table of Arrow's own types.

    Raises:
        ColumnMismatch: the target cannot hold every value exactly, or the type is not known.
    """
    kind, convert = _arrow.sendable(field)
    if kind is None:
        raise unknown(field)
    to_wall_clock = target is not None and target.kind == "timestamp" and pa.types.is_timestamp(kind)
    if to_wall_clock and kind.tz is not None:
        kind, convert = pa.timestamp("us"), pc.local_timestamp
    staged, name = _staged(kind) or (None, "")
    if staged is None:
        raise unknown(field)
    if target is None:
        return Column(field.name, staged, None, False, convert)
    if name == target.kind:
        if name == "numeric" and target.scale is not None and kind.scale > target.scale:
            raise unfit(field, target)
        return Column(field.name, staged, None, target.full == staged, convert)
    if name == "text":
        if target.kind in ("bit", "varbit", "generated"):
            raise unfit(field, target)
        is_text = target.kind in ("varchar", "bpchar", "citext")
        same = (
            target.full == "character varying"
        )  # its binary form is that of text, and its length is checked
        return Column(field.name, staged, None if is_text else target.full, same, convert)
    if target.kind not in _WIDER.get(name, ()) and not _is_whole(name, kind, target):
        raise unfit(field, target)
    return Column(field.name, staged, target.full, False, convert)


def _staged(kind: pa.DataType) -> tuple[str, str] | None:
    return next(((staged, name) for fits, staged, name in _STAGED if fits(kind)), None)


def _is_timestamp(kind: pa.DataType, *, zoned: bool) -> bool:
    return pa.types.is_timestamp(kind) and (kind.tz is not None) is zoned


def _is_whole(name: str, kind: pa.DataType, target: Target) -> bool:
    return name == "numeric" and kind.scale == 0 and target.kind in ("int2", "int4", "int8")
