"""Arrow's lists as PostgreSQL's arrays, which are rectangular and have at most six dimensions."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from inbox_outbox_base.databases import arrow, arrow_values

MOST_DIMENSIONS = 6


def is_list(kind: pa.DataType) -> bool:
    """Whether a type is a list."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def element(kind: pa.DataType) -> tuple[pa.DataType, int]:
    """The type of the elements of lists of lists, and the number of dimensions."""
    dimensions = 0
    while is_list(kind):
        kind, dimensions = kind.value_type, dimensions + 1
    return kind, dimensions


def is_binary(kind: pa.DataType) -> bool:
    """Whether pgpq can send a type. It can send neither lists of lists nor lists of instants: it declares
    instants in a list as times without a zone, which PostgreSQL refuses."""
    if not is_list(kind):
        return True
    inner = kind.value_type
    return not (is_list(inner) or (pa.types.is_timestamp(inner) and inner.tz is not None))


def each(convert: arrow_values.Converter | None) -> arrow_values.Converter | None:
    """The conversion of all elements of lists of lists."""
    if convert is None:
        return None

    def inside(column: pa.Array) -> pa.Array:
        if not is_list(column.type):
            return convert(column)
        return _with(column, inside(column.flatten()))

    return inside


def rectangular(name: str) -> arrow_values.Converter:
    """Lists of lists that have the shape of an array.

    Raises (when it converts):
        InvalidRow: another shape; PostgreSQL would refuse most of them, and keep ``[[]]`` as ``[]``.
    """

    def wrong(column: pa.Array) -> pa.Array:
        row, is_wrong = np.arange(len(column)), np.zeros(len(column), bool)
        while is_list(column.type.value_type):
            row, column = np.repeat(row, _lengths(column)), column.flatten()
            lengths = _lengths(column)
            # Compare each list with any other one of its row.
            one: Any = np.zeros(len(is_wrong), np.int64)
            one[row] = lengths
            is_wrong[row[(lengths == 0) | (lengths != one[row])]] = True
        return pa.array(is_wrong)

    return arrow_values.refuse(
        name,
        wrong,
        "an array whose inner arrays are NULL, empty or of different lengths, which PostgreSQL's arrays "
        "cannot be; use to_json and a column of JSON or text",
    )


def literals(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Lists as PostgreSQL's text form of arrays, other columns as they are."""
    columns = [_literal(column) if is_list(column.type) else column for column in batch.columns]
    return pa.record_batch(columns, names=batch.schema.names)


def _literal(column: pa.Array) -> pa.Array:
    values = column.flatten()
    if is_list(values.type):
        texts = _literal(values)
    else:
        texts = arrow.bytea(values) if pa.types.is_binary(values.type) else arrow.text(values)
        for plain, escaped in (("\\", "\\\\"), ('"', '\\"')):
            texts = pc.replace_substring(texts, plain, escaped)
        # In quotes, no text is taken for NULL.
        texts = pc.binary_join_element_wise('"', texts, '"', "", null_handling="emit_null")
    joined = pc.binary_join(_with(column, pc.fill_null(texts, "NULL")), ",")
    return pc.binary_join_element_wise("{", joined, "}", "", null_handling="emit_null")


def _lengths(column: pa.Array) -> Any:
    """How many elements each list has; 0 if it is NULL."""
    return pc.fill_null(pc.list_value_length(column), 0).to_numpy()


def _with(column: pa.Array, values: pa.Array) -> pa.Array:
    """The same lists with other elements, which come as `flatten` returns them."""
    ends = np.concatenate([[0], np.cumsum(_lengths(column))]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(ends), values, mask=pc.is_null(column))
