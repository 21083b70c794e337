"""Conversions of Arrow columns that refuse values a database would change silently; errors name the
column."""

import json
from collections.abc import Callable, Sequence
from datetime import date, datetime
from decimal import Decimal

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


def finite_time(name: str, infinite: pa.Scalar) -> Converter:
    """Not the value, as a number, that stands for -infinity, nor one below it."""
    return refuse(
        name,
        lambda column: pc.less_equal(column.cast(infinite.type), infinite),
        "a time so early that this database would store -infinity",
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


def exact_numbers(name: str) -> Converter:
    """JSON whose numbers are whole numbers of 64 bits, or as exact as a double."""

    def rounded(column: pa.Array) -> pa.Array:
        # Only long numbers, and those with an exponent, can be.
        suspected = pc.match_substring_regex(column, r"[0-9][0-9.]{15}|[0-9][eE]")
        if not pc.any(suspected).as_py():
            return suspected
        return pa.array(
            [suspect.as_py() and _rounds(text) for suspect, text in zip(suspected, column, strict=True)],
            pa.bool_(),
        )

    return refuse(
        name, rounded, "JSON with a number that has more digits than a double, which would be rounded"
    )


def _rounds(text: pa.Scalar) -> bool:
    class Rounded(Exception):
        pass

    def number(digits: str) -> None:
        if "." not in digits and "e" not in digits.lower() and -(2**63) <= int(digits) < 2**64:
            return
        if Decimal(repr(float(digits))) != Decimal(digits):
            raise Rounded

    try:
        json.loads(text.as_py(), parse_float=number, parse_int=number)
    except Rounded:
        return True
    except ValueError:
        return False  # the server says why it is no JSON
    return False


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
