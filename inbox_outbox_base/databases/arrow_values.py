"""Conversions of Arrow columns that refuse values a database would change silently; errors name the
column."""

from collections.abc import Callable, Sequence
from datetime import date, datetime

import pyarrow as pa
import pyarrow.compute as pc

from inbox_outbox_base.errors.spark import InvalidRow

Converter = Callable[[pa.Array], pa.Array]


def chained(*steps: Converter | None) -> Converter | None:
    """One conversion after the other."""
    given = [step for step in steps if step is not None]
    if not given:
        return None

    def convert(column: pa.Array) -> pa.Array:
        for step in given:
            column = step(column)
        return column

    return convert


def to(kind: pa.DataType) -> Converter:
    """Arrow's own cast."""
    return lambda column: column.cast(kind)


def refuse(name: str, wrong: Callable[[pa.Array], pa.Array], because: str) -> Converter:
    """The column as it is, unless a value is wrong.

    Raises (when it converts):
        InvalidRow: a value is wrong.
    """

    def check(column: pa.Array) -> pa.Array:
        if pc.any(wrong(column)).as_py():
            raise InvalidRow(f"column {name!r}: {because}")
        return column

    return check


def present(name: str) -> Converter:
    """No NULL: some columns replace it with a value of their own."""
    return refuse(name, pc.is_null, "NULL, which the target does not allow")


def finite(name: str) -> Converter:
    """No NaN, no infinity."""
    return refuse(
        name,
        lambda column: pc.invert(pc.is_finite(column)),
        "NaN or infinity, which this database cannot store",
    )


def not_nan(name: str) -> Converter:
    """No NaN."""
    return refuse(name, pc.is_nan, "NaN, which this database stores as NULL")


def four_digit_years(name: str, kind: pa.DataType) -> Converter:
    """Years 1 to 9999: other years have no text that a database reads."""
    first, last = (
        (date.min, date.max) if pa.types.is_date(kind) else (datetime.min, datetime.max)  # noqa: DTZ901
    )
    low, high = pa.scalar(first, kind), pa.scalar(last, kind)
    return refuse(
        name,
        lambda column: pc.or_(pc.less(column, low), pc.greater(column, high)),
        "a year outside 1 to 9999",
    )


def whole(name: str, digits: int) -> Converter | None:
    """At most as many fractional digits of a second as the target keeps; it would round the rest."""
    if digits >= 6:
        return None
    step = 10 ** (6 - digits)

    def finer(column: pa.Array) -> pa.Array:
        numbers = column.cast(pa.int64())
        return pc.not_equal(numbers, pc.multiply(pc.divide(numbers, step), step))

    return refuse(name, finer, f"a time finer than the target's {digits} digits of a second")


def at_most(name: str, longest: int, length: Callable[[pa.Array], pa.Array], unit: str) -> Converter:
    """No longer text; not even trailing spaces, which the database would cut off silently."""
    return refuse(
        name,
        lambda column: pc.greater(length(column), longest),
        f"text longer than the target's {longest} {unit}",
    )


def exactly(name: str, length: int) -> Converter:
    """Byte strings of exactly this length: shorter ones would be padded."""
    return refuse(
        name,
        lambda column: pc.not_equal(pc.binary_length(column), length),
        f"a length other than the target's {length} bytes",
    )


def one_of(name: str, labels: Sequence[str]) -> Converter:
    """Only these texts, compared exactly."""
    known = pa.array([*labels, None], pa.string())
    return refuse(
        name,
        lambda column: pc.invert(pc.is_in(column, known)),
        f"a value other than {', '.join(map(repr, labels))}",
    )
