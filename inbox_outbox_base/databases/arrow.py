"""Arrow columns in the forms that databases accept."""

import json
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from inbox_outbox_base.errors.spark import InvalidRow

Converter = Callable[[pa.Array], pa.Array]
_PLAIN = (
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_decimal,
    pa.types.is_string,
    pa.types.is_binary,
    pa.types.is_date32,
    pa.types.is_timestamp,
    pa.types.is_time,
    pa.types.is_duration,
)
_NESTED = (pa.types.is_list, pa.types.is_large_list, pa.types.is_struct, pa.types.is_map)


def sendable(field: pa.Field) -> tuple[pa.DataType | None, Converter | None]:
    """The plain type that a column is sent as, and its conversion; None if no target can hold it."""
    kind = field.type
    if any(is_nested(kind) for is_nested in _NESTED):
        return (None, None) if _has_variant(kind) else (pa.string(), to_json)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind) or pa.types.is_null(kind):
        return pa.string(), lambda column: column.cast(pa.string())
    if pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return pa.binary(), lambda column: column.cast(pa.binary())
    if pa.types.is_int8(kind):
        return pa.int16(), lambda column: column.cast(pa.int16())
    if pa.types.is_timestamp(kind) and kind.unit != "us":
        return pa.timestamp("us", kind.tz), lambda column: column.cast(pa.timestamp("us", kind.tz))
    if pa.types.is_time(kind) and kind != pa.time64("us"):
        # Spark uses nanoseconds only if a column was declared with that precision.
        return pa.time64("us"), lambda column: column.cast(pa.time64("us"))
    return (kind, None) if any(fits(kind) for fits in _PLAIN) else (None, None)


def _has_variant(kind: pa.DataType) -> bool:
    """Spark's VARIANT arrives as a pair of opaque byte strings."""
    if not pa.types.is_nested(kind):
        return False
    fields = [kind.field(place) for place in range(kind.num_fields)]
    is_variant = pa.types.is_struct(kind) and {field.name for field in fields} == {"value", "metadata"}
    return is_variant or any(_has_variant(field.type) for field in fields)


def to_json(column: pa.Array) -> pa.Array:
    """Lists, structs and maps as JSON text.

    Raises:
        InvalidRow: a date or time is outside the years that Python has.
        UnicodeDecodeError: a text is not UTF-8.
    """
    try:
        values = column.to_pylist()
    except UnicodeError:
        raise
    except (OverflowError, ValueError):
        raise InvalidRow("a date or time outside the years 1 to 9999, which JSON cannot have here") from None
    texts = [
        None if value is None else json.dumps(_plain(value, column.type), ensure_ascii=False)
        for value in values
    ]
    return pa.array(texts, pa.string())


def _plain(value: Any, kind: pa.DataType) -> Any:
    """A value that JSON can express: decimals and times as text, so that no digit is lost."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        if value != value or value in (float("inf"), float("-inf")):
            return str(value)
        return value
    if pa.types.is_map(kind):
        return {_name(key): _plain(item, kind.item_type) for key, item in value}
    if isinstance(value, dict):
        return {field.name: _plain(value[field.name], field.type) for field in kind}
    if isinstance(value, list):
        return [_plain(item, kind.value_type) for item in value]
    if isinstance(value, bytes):
        return value.hex()
    return _name(value)


def _name(value: Any) -> str:
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return str(value.total_seconds())
    return str(value) if isinstance(value, Decimal | str | int | float) else json.dumps(value, default=str)


def lines(batch: pa.RecordBatch, binary: Converter) -> bytes:
    """Rows as tab-separated lines of text, as PostgreSQL's COPY and MySQL's LOAD DATA both read them."""
    columns = [_field(column, binary) for column in batch.columns]
    joined = pc.binary_join_element_wise(*columns, "\t", null_handling="replace", null_replacement="\\N")
    ended = pc.binary_join_element_wise(joined, "\n", "", null_handling="emit_null")
    if len(ended) == 0:
        return b""
    _, offsets, data = ended.buffers()
    ends = memoryview(offsets).cast("i")
    return memoryview(data)[ends[ended.offset] : ends[ended.offset + len(ended)]].tobytes()


def _field(column: pa.Array, binary: Converter) -> pa.Array:
    if pa.types.is_binary(column.type):
        return binary(column)
    shown = text(column)
    if pa.types.is_string(column.type):
        for plain, escaped in (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r")):
            shown = pc.replace_substring(shown, plain, escaped)
    return shown


def text(column: pa.Array) -> pa.Array:
    """Values as databases read them, except byte strings.

    Raises:
        InvalidRow: a date or timestamp has a year beyond 32767, for which Arrow has no text.
    """
    shown = readable(column)
    has_years = pa.types.is_date(column.type) or pa.types.is_timestamp(column.type)
    if has_years and pc.any(pc.starts_with(shown, "<")).as_py():
        raise InvalidRow("a year outside -32767 to 32767, which has no text")
    return shown


def readable(column: pa.Array) -> pa.Array:
    """The same for people: of a date or timestamp that has no text, the number is shown."""
    kind = column.type
    if pa.types.is_duration(kind):
        return pc.binary_join_element_wise(column.cast(pa.int64()).cast(pa.string()), " microseconds", "")
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        # The text of an offset has no seconds, but offsets had seconds before standard time; and Arrow would
        # write a wrong year of five digits.
        wall_clock = column.cast(pa.timestamp(kind.unit, "UTC")).cast(pa.timestamp(kind.unit))
        return pc.binary_join_element_wise(wall_clock.cast(pa.string()), "Z", "")
    return column if pa.types.is_string(kind) else column.cast(pa.string())


def hexadecimal(column: pa.Array) -> pa.Array:
    """Byte strings as hexadecimal digits."""
    return pa.array([None if value is None else value.hex() for value in column.to_pylist()], pa.string())


def bytea(column: pa.Array) -> pa.Array:
    r"""Byte strings as PostgreSQL reads them: ``\x`` and digits."""
    return pc.binary_join_element_wise("\\x", hexadecimal(column), "", null_handling="emit_null")


def escaped_bytea(column: pa.Array) -> pa.Array:
    r"""Byte strings as PostgreSQL reads them in a line of text: ``\\x`` and digits."""
    return pc.binary_join_element_wise("\\", bytea(column), "", null_handling="emit_null")
