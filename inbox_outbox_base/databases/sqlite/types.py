"""Which Arrow types go into which columns of SQLite.

A column's declared type is only a hint, its affinity. By it SQLite changes incoming values: text that looks
like a number becomes a number, a decimal becomes a double. So values that a column would change are refused,
and types that SQLite lacks are stored as text.
"""

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc

from inbox_outbox_base.databases import arrow, arrow_values
from inbox_outbox_base.databases.loading import unfit, unknown
from inbox_outbox_base.databases.loading_values import Column, Target
from inbox_outbox_base.errors.spark import ColumnMismatch

_NUMBERS = {"integer", "numeric", "untyped"}
_FITS: dict[str, set[str]] = {
    "boolean": {"untyped"},
    "integer": _NUMBERS,
    "small": _NUMBERS | {"real"},
    "real": {"real", "untyped"},
    "decimal": {"text", "untyped"},
    "text": {"text", "untyped", "json"},
    "json": {"text", "untyped", "json"},
    "blob": {"blob", "untyped"},
    "date": {"date", "datetime", "text", "untyped"},
    "datetime": {"datetime", "text", "untyped"},
    "time": {"time", "text", "untyped"},
}
"""The targets of each type, without conversion."""

_NAMES: list[tuple[Callable[[pa.DataType], bool], str, str]] = [
    (pa.types.is_boolean, "boolean", "INTEGER"),
    (lambda kind: pa.types.is_int16(kind) or pa.types.is_int32(kind), "small", "INTEGER"),
    (pa.types.is_int64, "integer", "INTEGER"),
    (pa.types.is_floating, "real", "REAL"),
    (pa.types.is_decimal, "decimal", "TEXT"),
    (pa.types.is_string, "text", "TEXT"),
    (pa.types.is_binary, "blob", "BLOB"),
    (pa.types.is_date32, "date", "TEXT"),
    (pa.types.is_timestamp, "datetime", "TEXT"),
    (pa.types.is_time64, "time", "TEXT"),
]
_DECLARED = {"DATE": "date", "DATETIME": "datetime", "TIMESTAMP": "datetime", "TIME": "time", "JSON": "json"}
"""Names that SQLite does not know. Their affinity is numeric, but text in these formats does not look like a
number, so it stays text."""

_BOOLEANS = {"BOOLEAN", "BOOL", "BIT", "TINYINT", "INTEGER", "INT"}
"""Usual names of columns of 0 and 1."""

_LIKE_A_NUMBER = r"^\s*[-+.0-9]"
_LONGEST_INTEGER = 18
"""All numbers with this many digits fit into 64 bits."""


@dataclass(frozen=True, slots=True)
class SQLiteTarget(Target):
    """A column, and whether it is in the primary key: an INTEGER PRIMARY KEY replaces NULL by a number."""

    is_key: bool


def affinity(declared: str) -> str:
    """The affinity that follows from a declared type (https://www.sqlite.org/datatype3.html, 3.1)."""
    name, bare = declared.upper(), _bare(declared)
    if bare in _DECLARED:
        return _DECLARED[bare]
    if bare == "":
        return "untyped"
    # ANY is numeric, except in a STRICT table.
    for part, found in (
        ("INT", "integer"),
        ("CHAR", "text"),
        ("CLOB", "text"),
        ("TEXT", "text"),
        ("BLOB", "blob"),
        ("REAL", "real"),
        ("FLOA", "real"),
        ("DOUB", "real"),
    ):
        if part in name:
            return found
    return "blob" if bare in ("BINARY", "VARBINARY") else "numeric"


def _bare(declared: str) -> str:
    return declared.upper().split("(")[0].strip()


def column(field: pa.Field, target: SQLiteTarget | None, *, is_version: bool) -> Column:
    """How a column is transferred.

    Raises as `Database.column`; and ColumnMismatch for a version that SQLite would compare as text.
    """
    kind, convert = arrow.sendable(field)
    if kind is None:
        raise unknown(field)
    is_whole = pa.types.is_decimal(kind) and kind.scale == 0 and kind.precision <= _LONGEST_INTEGER
    if is_whole and (target is None or target.kind in _NUMBERS):
        convert, kind = arrow_values.to(pa.int64()), pa.int64()
    name, staged = _named(field, kind)
    if name == "":
        raise unknown(field)
    if is_version and name == "decimal":
        raise ColumnMismatch(
            f"Upsert(version={field.name!r}): SQLite has no exact decimals, and would compare them as text"
        )
    is_boolean = name == "boolean" and target is not None and _bare(target.full) in _BOOLEANS
    if target is not None and target.kind not in _FITS[name] and not is_boolean:
        raise unfit(field, target)
    steps = [convert, _sent(field.name, name, kind)]
    if target is not None and target.is_key:
        steps.append(arrow_values.present(field.name))
    if target is not None and (name, target.kind) == ("text", "json"):
        steps.append(
            arrow_values.refuse(field.name, _looks_like_a_number, "text that SQLite would store as a number")
        )
    return Column(field.name, staged, None, target is not None, arrow_values.chained(*steps))


def _named(field: pa.Field, kind: pa.DataType) -> tuple[str, str]:
    is_nested = pa.types.is_string(kind) and pa.types.is_nested(field.type)
    if is_nested:
        return "json", "TEXT"
    return next(((name, staged) for fits, name, staged in _NAMES if fits(kind)), ("", ""))


def _sent(field: str, name: str, kind: pa.DataType) -> arrow_values.Converter | None:
    """Times in the format of SQLite's own functions, an instant as the time in UTC."""
    if name == "boolean":
        return arrow_values.to(pa.int8())
    if name == "real":
        return arrow_values.not_nan(field)
    if name == "decimal":
        return _plain_decimals
    if name == "date":
        return arrow_values.chained(arrow_values.four_digit_years(field, kind), arrow_values.to(pa.string()))
    if name == "datetime":
        naive = pa.timestamp("us")
        return arrow_values.chained(
            arrow_values.to(naive), arrow_values.four_digit_years(field, naive), arrow_values.to(pa.string())
        )
    return arrow_values.to(pa.string()) if name == "time" else None


def _plain_decimals(column: pa.Array) -> pa.Array:
    """All digits, no exponent: one text for each number."""
    values: list[Decimal | None] = column.to_pylist()
    return pa.array([None if value is None else format(value, "f") for value in values], pa.string())


def _looks_like_a_number(column: pa.Array) -> pa.Array:
    return pc.match_substring_regex(column, _LIKE_A_NUMBER)
