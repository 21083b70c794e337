"""Which Arrow types go into which columns of PostgreSQL.

A column of exactly the same type can be copied straight into the target. Others are CAST, but never to a type
with a length: a CAST would cut values that are too long, while an assignment raises an error for them.
"""

from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from inbox_outbox_base.databases import arrow, arrow_values
from inbox_outbox_base.databases.loading import unfit, unknown
from inbox_outbox_base.databases.loading_values import Column, Target
from inbox_outbox_base.errors.spark import ColumnMismatch

from . import arrays
from .targets import CLOCKS, PostgreSQLTarget

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
_MICROSECONDS = 946_684_800_000_000
_INFINITE = {
    "date": pa.scalar(-(2**31) + 10_957, pa.int32()),
    "timestamp": pa.scalar(-(2**63) + _MICROSECONDS, pa.int64()),
    "timestamptz": pa.scalar(-(2**63) + _MICROSECONDS, pa.int64()),
}
"""In the binary form, the first value of each is -infinity. PostgreSQL counts from the year 2000."""

_WIDER = {
    "int2": {"int4", "int8", "numeric", "float4", "float8"},
    "int4": {"int2", "int8", "numeric", "float8"},
    "int8": {"int2", "int4", "numeric"},
    "float4": {"float8"},
    "float8": set(),
    "date": {"timestamp"},
}
"""Other targets of each type: every value is kept, or the server raises an error."""


def column(field: pa.Field, target: PostgreSQLTarget | None) -> Column:
    """How a column is transferred to its target or, without one, to a table of Arrow's own types.

    Raises:
        ColumnMismatch: the target cannot hold every value exactly, or the type is not known.
    """
    is_array = arrays.is_list(field.type) and (target is None or target.element is not None)
    found = (_array if is_array else _scalar)(field, target)
    if target is None:
        return found
    cast = None if found.cast is None else _escaped(found.cast)
    return replace(found, cast=cast, compared=_compared(found.staged, target))


def _compared(staged: str, target: PostgreSQLTarget) -> str:
    """The staged type whose values compare as they will in the target."""
    if staged == "text" and target.compared is not None:
        staged = target.compared
    if target.collation is None:
        return staged
    return _escaped(f"{staged} COLLATE {target.collation}")


def _escaped(name: str) -> str:
    """A name in SQL: the driver takes % as its own."""
    return name.replace("%", "%%")


def _scalar(field: pa.Field, target: PostgreSQLTarget | None) -> Column:
    kind, convert = arrow.sendable(field)
    if kind is None:
        raise unknown(field)
    to_wall_clock = target is not None and target.kind == "timestamp" and pa.types.is_timestamp(kind)
    if to_wall_clock and kind.tz is not None:
        kind, convert = pa.timestamp("us"), arrow_values.chained(convert, pc.local_timestamp)
    staged, name = _staged(kind) or (None, "")
    if staged is None:
        raise unknown(field)
    convert = arrow_values.chained(convert, _sent(field.name, name))
    if target is None:
        return Column(field.name, staged, None, False, convert)
    convert = arrow_values.chained(convert, _kept(field.name, name, target))
    if name == target.kind:
        if name == "numeric" and target.scale is not None and kind.scale > target.scale:
            raise unfit(field, target)
        return Column(field.name, staged, None, target.full == staged, convert)
    if name == "text":
        if not target.reads_text:
            raise unfit(field, target)
        is_text = target.kind in ("varchar", "bpchar", "citext")
        same = target.full == "character varying"  # its binary form is that of text
        return Column(field.name, staged, None if is_text else target.full, same, convert)
    rounds_to_tens = target.kind == "numeric" and target.scale is not None and target.scale < 0
    if rounds_to_tens or (target.kind not in _WIDER.get(name, ()) and not _is_whole(name, kind, target)):
        raise unfit(field, target)
    return Column(field.name, staged, target.full, False, convert)


def _array(field: pa.Field, target: PostgreSQLTarget | None) -> Column:
    kind, dimensions = arrays.element(field.type)
    if dimensions > arrays.MOST_DIMENSIONS:
        raise ColumnMismatch(
            f"column {field.name!r}: an array of {dimensions} dimensions; PostgreSQL has at most "
            f"{arrays.MOST_DIMENSIONS}, so use to_json and a column of JSON or text"
        )
    try:
        element = _scalar(field.with_type(kind), None if target is None else target.element)
    except ColumnMismatch as error:
        raise ColumnMismatch(f"elements of an array: {error}") from None
    staged = f"{element.staged}[]"
    same = target is not None and target.full == staged
    cast = None if target is None or element.cast is None else target.full
    shaped = arrays.rectangular(field.name) if dimensions > 1 else None
    convert = arrow_values.chained(shaped, arrays.each(element.convert))
    return Column(field.name, staged, cast, same, convert)


def _sent(field: str, name: str) -> arrow_values.Converter | None:
    """Refuse values that the binary form would change silently."""
    return arrow_values.finite_time(field, _INFINITE[name]) if name in _INFINITE else None


def _kept(field: str, name: str, target: PostgreSQLTarget) -> arrow_values.Converter | None:
    """Refuse values that the target would change silently."""
    if target.length is not None and name == "text":
        return arrow_values.at_most(field, target.length, pc.utf8_length, "characters")
    if target.digits is not None and name in CLOCKS:
        return arrow_values.whole(field, target.digits)
    return None


def _staged(kind: pa.DataType) -> tuple[str, str] | None:
    return next(((staged, name) for fits, staged, name in _STAGED if fits(kind)), None)


def _is_timestamp(kind: pa.DataType, *, zoned: bool) -> bool:
    return pa.types.is_timestamp(kind) and (kind.tz is not None) is zoned


def _is_whole(name: str, kind: pa.DataType, target: Target) -> bool:
    return name == "numeric" and kind.scale == 0 and target.kind in ("int2", "int4", "int8")
