"""Which Arrow types go into which types of MySQL and MariaDB.

In strict mode, a number out of range and text that is too long are errors. Without an error, the server
rounds, pads, cuts spaces off, and takes a text for the number of an enum's label: values that it would change
like this are refused here.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from inbox_outbox_base.databases import arrow, arrow_values
from inbox_outbox_base.databases.loading import unfit, unknown
from inbox_outbox_base.databases.loading_values import Column, Target

_INTEGERS = {"tinyint", "smallint", "mediumint", "int", "bigint"}
_TEXTS = {"char", "varchar", "tinytext", "text", "mediumtext", "longtext", "enum", "json"}
_PARSED = {"uuid", "inet4", "inet6"}
"""MariaDB's own types: they accept text, and raise an error for text they cannot read."""

_FITS: dict[str, set[str]] = {
    "boolean": {"tinyint", "bit"},
    "smallint": _INTEGERS | {"decimal", "float", "double"},
    "int": _INTEGERS | {"decimal", "double"},
    "bigint": _INTEGERS | {"decimal"},
    "decimal": {"decimal"},
    "float": {"float", "double"},
    "double": {"double"},
    "text": _TEXTS | _PARSED,
    "binary": {"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"},
    "date": {"date", "datetime"},
    "datetime": {"datetime"},
    "instant": {"datetime", "timestamp"},
    "time": {"time"},
}
"""The targets of each type: every value is kept, or there is an error."""

_NAMES: list[tuple[Callable[[pa.DataType], bool], str, str]] = [
    (pa.types.is_boolean, "boolean", "tinyint(1)"),
    (pa.types.is_int16, "smallint", "smallint"),
    (pa.types.is_int32, "int", "int"),
    (pa.types.is_int64, "bigint", "bigint"),
    (pa.types.is_float32, "float", "float"),
    (pa.types.is_float64, "double", "double"),
    (pa.types.is_decimal, "decimal", "decimal"),
    (pa.types.is_string, "text", "longtext"),
    (pa.types.is_binary, "binary", "longblob"),
    (pa.types.is_date32, "date", "date"),
    (lambda kind: pa.types.is_timestamp(kind) and kind.tz is not None, "instant", "datetime(6)"),
    (lambda kind: pa.types.is_timestamp(kind) and kind.tz is None, "datetime", "datetime(6)"),
    (pa.types.is_time64, "time", "time(6)"),
]


@dataclass(frozen=True, slots=True)
class MySQLTarget(Target):
    """A column, and its limits: MySQL would silently change values that exceed them."""

    nullable: bool
    length: int | None
    """Of text: characters. Of byte strings: bytes."""
    digits: int | None
    """Of a time: fractional digits of a second."""
    collation: str | None
    counted: bool
    """Whether it is the table's AUTO_INCREMENT column."""


@dataclass(frozen=True, slots=True)
class Server:
    """Differences between servers."""

    largest_scale: int
    """The most digits after the decimal point of a DECIMAL."""
    collation: str
    """The collation of text without a target."""


def column(field: pa.Field, target: MySQLTarget | None, server: Server) -> Column:
    """How a column is transferred.

    Raises as `Database.column`.
    """
    kind, convert = arrow.sendable(field)
    if kind is None:
        raise unknown(field)
    name, staged = _named(kind)
    if name == "":
        raise unknown(field)
    if name == "decimal":
        # A temporary table gets no scale that only the target's column can have.
        if kind.scale > server.largest_scale:
            raise unknown(field)
        staged = f"decimal({kind.precision},{kind.scale})"
    if name == "text":
        # The target's, also if it has few characters: of two, the larger one would decide which keys are
        # equal.
        staged += f" COLLATE {(target and target.collation) or server.collation}"
    if target is not None and not _fits(name, kind, target):
        raise unfit(field, target)
    steps = [convert, _sent(field.name, name, kind, target)]
    if target is not None:
        steps += [
            _kept(field.name, name, target, is_text=not pa.types.is_nested(field.type)),
            None if target.nullable else arrow_values.present(field.name),
        ]
    return Column(field.name, staged, None, False, arrow_values.chained(*steps))


def _named(kind: pa.DataType | None) -> tuple[str, str]:
    return next(
        ((name, staged) for fits, name, staged in _NAMES if kind is not None and fits(kind)), ("", "")
    )


def _fits(name: str, kind: pa.DataType, target: MySQLTarget) -> bool:
    if name == "decimal" and kind.scale == 0 and target.kind in _INTEGERS:
        return True
    if target.kind not in _FITS[name]:
        return False
    if name == "decimal":
        return target.scale is not None and kind.scale <= target.scale
    if target.kind in ("float", "double"):
        return target.scale is None  # FLOAT(7,2) rounds
    return target.kind != "bit" or target.full == "bit(1)"


def _sent(
    field: str, name: str, kind: pa.DataType, target: MySQLTarget | None
) -> arrow_values.Converter | None:
    """The conversion to a form that the server reads.

    An instant is sent in UTC, the connection's time zone; for a DATETIME, which has no time zone, as local
    time in the session's time zone.
    """
    if name == "boolean":
        return arrow_values.to(pa.int8())
    if name in ("float", "double"):
        # All digits of a double, because the server reads numbers as doubles before converting to FLOAT.
        return arrow_values.chained(arrow_values.finite(field), arrow_values.to(pa.float64()))
    if name == "instant":
        to_wall_clock = target is not None and target.kind == "datetime"
        naive = pc.local_timestamp if to_wall_clock else arrow_values.to(pa.timestamp("us"))
        return arrow_values.chained(naive, arrow_values.four_digit_years(field, pa.timestamp("us")))
    if name in ("date", "datetime"):
        return arrow_values.four_digit_years(field, kind)
    return None


def _kept(field: str, name: str, target: MySQLTarget, *, is_text: bool) -> arrow_values.Converter | None:
    """Refuse values that the target would change silently."""
    if name in ("instant", "datetime", "time"):
        return arrow_values.whole(field, target.digits or 0)
    if target.kind == "enum":
        return arrow_values.one_of(field, _labels(target.full))
    if target.kind == "binary" and target.length is not None:
        return arrow_values.exactly(field, target.length)
    if target.kind == "json" and is_text:
        return arrow_values.exact_numbers(field)
    if name != "text" or target.length is None:
        return None
    if target.kind in ("char", "varchar"):
        return arrow_values.at_most(field, target.length, pc.utf8_length, "characters")
    is_utf8 = (target.collation or "").startswith("utf8")
    return arrow_values.at_most(
        field, target.length, pc.binary_length if is_utf8 else pc.utf8_length, "bytes"
    )


def _labels(full: str) -> list[str]:
    return [label.replace("''", "'") for label in re.findall("'((?:[^']|'')*)'", full)]
