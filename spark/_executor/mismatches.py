"""The content of rows: digests of chosen columns, and the rows whose digest differs from the taken row's."""

import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from inbox_outbox_base.checks.keys import digest, is_mismatch
from inbox_outbox_base.databases.arrow import text
from inbox_outbox_base.databases.loading_values import TakenKeys
from inbox_outbox_base.errors.spark import ColumnMismatch, InvalidRow
from spark._options.settings import WriterSettings

from .keys import in_utc


def check_digest(settings: WriterSettings, schema: pa.Schema) -> None:
    """Check that the columns of the digest exist, in types whose values have one form.

    Raises:
        ColumnMismatch: a column is missing, or has another type.
    """
    for name in settings.digest:
        if name not in schema.names:
            raise ColumnMismatch(f"digest={name!r}: the DataFrame has no such column")
        kind = schema.field(name).type
        if not _is_text(kind) and not any(fits(kind) for fits in _PLAIN):
            raise ColumnMismatch(
                f"digest={name!r}: the column has the type {kind}, expected a string, bytes, a number, a "
                "boolean, a date or a time; to_json makes a string of others"
            )


def digests(settings: WriterSettings, batch: pa.RecordBatch) -> pa.BinaryArray:
    """The digest of each row, the same as that of `Inbox.accept` for a tuple of these columns.

    Raises:
        InvalidRow: a text is not UTF-8, or a year is beyond 32767.
    """
    columns = [_values(name, batch.column(name)) for name in settings.digest]
    return pa.array([digest(row) for row in zip(*columns, strict=True)], pa.binary())


def mismatches(keys: pa.StringArray, given: pa.BinaryArray, taken: TakenKeys) -> int:
    """How many rows have a key that others have taken with another digest."""
    stored = taken.known.digests
    pairs = zip(keys.to_pylist(), given.to_pylist(), strict=True)
    return sum(is_mismatch(its, stored.get(key)) for key, its in pairs)


_PLAIN = (
    pa.types.is_null,
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_decimal,
    pa.types.is_date,
    pa.types.is_timestamp,
    pa.types.is_time,
    pa.types.is_binary,
    pa.types.is_large_binary,
)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _values(name: str, column: pa.Array) -> list[Any]:
    """The values as JSON has them."""
    kind = column.type
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        raise InvalidRow(f"digest={name!r}: a text is not valid UTF-8, or a value not of its type") from None
    if pa.types.is_date(kind) or pa.types.is_time(kind) or pa.types.is_timestamp(kind):
        column = text(in_utc(column))
    values: list[Any] = column.to_pylist()
    if pa.types.is_decimal(kind):
        return [None if value is None else _decimal(value) for value in values]
    if pa.types.is_floating(kind) and not pc.all(pc.is_finite(column)).as_py():
        return [value if value is None or math.isfinite(value) else str(value) for value in values]
    return [value.hex() if isinstance(value, bytes) else value for value in values]


def _decimal(value: Decimal) -> int | str:
    """A number if it is whole, else a text with all its digits: the scale does not count."""
    digits = format(value, "f")
    if "." in digits:
        digits = digits.rstrip("0").removesuffix(".")
    return digits if "." in digits else int(digits)
