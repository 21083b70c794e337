"""Keys as whole columns: the text that the inbox stores for them, and the fingerprint of many keys."""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import pairwise, permutations, product

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inbox_outbox_base.checks.keys import LONGEST_KEY, encode_key
from spark._executor.keys import Fingerprint, check_type, encode
from spark.errors import ColumnMismatch, InvalidRow

AT, CLOCK = datetime(2026, 2, 3, 4, 5, 6, 7_000, tzinfo=UTC), "2026-02-03 04:05:06.007000"
AWKWARD = "\"\\/,[]{}:'\t\n\r\b\f\x01\x1f\x7f\x80\x85\u2028\ufeff\ue000é\u0301ß€🙂\U0010ffff aA0"
ANY = st.characters(exclude_characters="\0", exclude_categories=["Cs"])
part_texts = st.text(st.sampled_from(AWKWARD) | ANY, max_size=12)
texts = st.text(st.sampled_from(AWKWARD) | ANY, min_size=1, max_size=120)
whole_numbers = st.integers(-(2**63), 2**63 - 1)
text_types = st.sampled_from([pa.string(), pa.large_string(), pa.string_view()])


@settings(max_examples=200, deadline=None)
@given(values=st.lists(texts | st.none()), kind=text_types, cut=st.integers(0, 3))
def test_one_column_of_text_is_stored_as_it_is(values: list[str | None], kind: pa.DataType, cut: int) -> None:
    """Each string is stored as `Inbox` stores it, also in a slice of an array. NULL stays NULL."""
    column = pa.array(values, kind)[cut:]
    assert encode([column]).to_pylist() == [
        None if value is None else encode_key(value) for value in values[cut:]
    ]


@st.composite
def tuples(draw: st.DrawFn) -> tuple[list[tuple[str | int | None, ...]], list[pa.DataType]]:
    """Rows of a key with two to four columns, and the columns' types."""
    kinds = draw(st.lists(text_types | st.just(pa.int64()), min_size=2, max_size=4))
    parts = [whole_numbers if kind == pa.int64() else part_texts for kind in kinds]
    return draw(st.lists(st.tuples(*(part | st.none() for part in parts)), max_size=8)), kinds


@settings(max_examples=200, deadline=None)
@given(table=tuples(), cut=st.integers(0, 3))
def test_several_columns_are_stored_as_a_tuple_is(
    table: tuple[list[tuple[str | int | None, ...]], list[pa.DataType]], cut: int
) -> None:
    """Each row is stored as `Inbox` stores the same tuple, also in a slice of an array. A row with a NULL in
    any part is NULL."""
    rows, kinds = table
    columns = [pa.array([row[at] for row in rows], kind)[cut:] for at, kind in enumerate(kinds)]
    assert encode(columns).to_pylist() == [expected(row) for row in rows[cut:]]


def expected(row: tuple[str | int | None, ...]) -> str | None:
    """The stored key of a row, as the inbox makes it."""
    parts = [part for part in row if part is not None]
    return encode_key(tuple(parts)) if len(parts) == len(row) else None


@pytest.mark.parametrize(
    ("column", "texts", "parts"),
    [
        (pa.array([0, -5, 2**63 - 1], pa.int64()), ["0", "-5", str(2**63 - 1)], None),
        (pa.array([255], pa.uint8()), ["255"], None),
        (pa.array([2**64 - 1], pa.uint64()), [str(2**64 - 1)], None),
        (pa.array([Decimal(10**37), Decimal(-1)], pa.decimal128(38, 0)), [str(10**37), "-1"], None),
        (pa.array([date(2026, 2, 3)], pa.date32()), ["2026-02-03"], ['"2026-02-03"']),
        (pa.array([AT], pa.timestamp("us")), [f"{CLOCK}"], [f'"{CLOCK}"']),
        (pa.array([AT], pa.timestamp("ms", "UTC")), [f"{CLOCK}Z"], [f'"{CLOCK}Z"']),
        (pa.array([AT], pa.timestamp("us", "America/New_York")), [f"{CLOCK}Z"], [f'"{CLOCK}Z"']),
    ],
)
def test_numbers_and_dates_have_one_text(column: pa.Array, texts: list[str], parts: list[str] | None) -> None:
    """Whole numbers are stored as digits, without quotes inside a tuple. Dates are ISO 8601, and timestamps
    are in UTC whatever the session's time zone."""
    assert encode([column]).to_pylist() == texts
    assert encode([column, column]).to_pylist() == [f"[{part},{part}]" for part in parts or texts]


@pytest.mark.parametrize(
    "kind",
    [
        pa.float64(),
        pa.bool_(),
        pa.binary(),
        pa.time64("us"),
        pa.decimal128(10, 2),
        pa.list_(pa.string()),
        pa.struct([("a", pa.string())]),
        pa.null(),
    ],
    ids=str,
)
def test_a_type_with_more_than_one_text_is_no_key(kind: pa.DataType) -> None:
    """A type whose values have more than one text form raises `ColumnMismatch`, which names the column and
    its type."""
    with pytest.raises(ColumnMismatch, match="'amount'") as caught:
        check_type("amount", kind)
    assert str(kind) in str(caught.value)


REFUSED = {
    "empty": b"",
    "NUL": b"\0",
    "NUL at the end": b"a\0",
    "NUL beside a control character": b"\na\0",
    "513 bytes": b"x" * 513,
    "513 bytes of 3": "€".encode() * 171,
    "513 bytes with a control character": b"\n" + b"x" * 512,
    "not UTF-8": b"\xff",
    "not UTF-8 beside a control character": b"\xff\x01",
    "cut short": "🙂".encode()[:3],
    "surrogate": b"\xed\xa0\x80",
    "too long a form": b"\xc0\x80",
}
refused = pytest.mark.parametrize("bad", REFUSED.values(), ids=REFUSED)


def as_text(*values: bytes | None) -> pa.StringArray:
    """A text column with these bytes, even if they are not valid UTF-8: Spark does not check them."""
    return pa.array(values, pa.binary()).view(pa.string())


@refused
def test_what_is_no_key_is_refused(bad: bytes) -> None:
    """An invalid key raises `InvalidRow`, wherever it stands among good keys, NULLs and the rest of a larger
    array."""
    for column in (
        as_text(bad),
        as_text(b"good", bad, None),
        as_text(None, b"good", bad),
        as_text(b"before", bad, b"after")[1:2],
    ):
        with pytest.raises(InvalidRow):
            encode([column])
    assert encode([as_text(b"before", bad, b"after")[2:]]).to_pylist() == ["after"]


@pytest.mark.parametrize(
    "kind", [pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.timestamp("us", "Asia/Tokyo")]
)
def test_a_year_that_has_no_text_is_refused(kind: pa.DataType) -> None:
    """Two such years could have one text: Arrow counts years with 16 bits."""
    day = 1 if kind == pa.date32() else 24 * 60 * 60 * 10**6
    for days in -12_800_000, 24_000_000:
        late = pa.array([0, days * day], kind)
        for columns in ([late], [late, pa.array([1, 2])]):
            with pytest.raises(InvalidRow, match="year"):
                encode(columns)


@refused
def test_a_part_that_is_no_text_is_refused(bad: bytes) -> None:
    """A part of a key with several columns is checked in the same way, except that a part may be empty."""
    column, numbers = as_text(b"good", bad), pa.array([1, 2])
    if bad == b"":
        assert encode([column, numbers]).to_pylist() == ['["good",1]', '["",2]']
        return
    for columns in ([column, numbers], [numbers, column], [column, column]):
        with pytest.raises(InvalidRow):
            encode(columns)


@pytest.mark.parametrize("good", [b"x" * LONGEST_KEY, "🙂".encode() * 128, b"\x01", b"\x7f", b" "])
def test_what_is_just_a_key_is_taken(good: bytes) -> None:
    """Keys at the limits are accepted: 512 bytes, one control character, a blank."""
    assert encode([as_text(good)]).to_pylist() == [good.decode()]


def test_what_lies_under_a_null_does_not_matter() -> None:
    """The bytes under a NULL are not checked."""
    offsets, data = pa.array([0, 1, 4], pa.int32()).buffers()[1], pa.py_buffer(b"a\0\xff\0")
    column = pa.Array.from_buffers(pa.string(), 2, [pa.py_buffer(b"\x01"), offsets, data])
    assert encode([column]).to_pylist() == ["a", None]


def digest(keys: Sequence[str], *cuts: int) -> bytes:
    """The fingerprint of keys that arrive in batches, cut at these places."""
    fingerprint, ends = Fingerprint(), [0, *sorted(cut % (len(keys) + 1) for cut in cuts), len(keys)]
    for begin, end in pairwise(ends):
        fingerprint.add(pa.array(keys[begin:end], pa.string()))
    return fingerprint.digest()


@settings(max_examples=200, deadline=None)
@given(keys=st.lists(texts, max_size=30), seed=st.integers(), cuts=st.lists(st.integers(0, 100), max_size=4))
def test_a_fingerprint_knows_no_order(keys: list[str], seed: int, cuts: list[int]) -> None:
    """The fingerprint is the same for any order of the keys and any division into batches, also for slices of
    larger arrays."""
    shuffled = random.Random(seed).sample(keys, len(keys))
    assert digest(shuffled, *cuts) == digest(keys)
    sliced, larger = Fingerprint(), pa.array(["before", *keys, "after"], pa.string())
    sliced.add(larger[1:-1])
    assert sliced.digest() == digest(keys)


def test_fingerprints_stay_the_same() -> None:
    """The ledger's fingerprints are recognized by later versions."""
    keys = ["a", "é", *(f"order-{number:030d}" for number in range(100)), *("x" * n for n in range(1, 40))]
    assert digest(keys, 3, 50).hex() == "59b2f9fbfc45a39fc7cabcf445741a2e"


few = st.text("ab", min_size=1, max_size=3) | st.sampled_from(["a" * 8, "a" * 9, "a" * 16, "a" * 7 + "b"])


@settings(max_examples=500, deadline=None)
@given(one=st.lists(few, max_size=5), other=st.lists(few, max_size=5))
def test_keys_that_differ_differ_in_their_fingerprint(one: list[str], other: list[str]) -> None:
    """Two lists of keys have the same fingerprint only if each key occurs equally often in both."""
    assert (digest(one) == digest(other)) is (Counter(one) == Counter(other))


def near_sets() -> Iterator[tuple[str, ...]]:
    """Many sets that are nearly the same: swapped, moved, cut, doubled, padded."""
    words = ["order-01", "order-02", "2026-01-", "customer"]
    for width in (1, 2, 3):
        yield from (("".join(each),) for each in permutations(words, width))
    # Heads and tails of two keys in all combinations, cut within and between words of eight bytes.
    for cut in (1, 7, 8, 9, 15, 16):
        head, tail = "h" * (cut - 1), "t" * 20
        for pairing in permutations("0123"):
            yield tuple(f"{head}{begin}{end}{tail}" for begin, end in zip("abcd", pairing, strict=True))
    # The same characters, split in different places.
    yield from (("a" * cut, "a" * (40 - cut)) for cut in range(1, 21))
    yield from (("x" * length,) * times for length in range(1, 70) for times in (1, 2, 3, 4))
    # Keys that look the same if padded with zeros, or read as words of eight bytes.
    yield from (("k" + "\0" * zeros,) for zeros in range(1, 30))
    yield from (("\0" * zeros + "k",) for zeros in range(1, 30))
    yield from ((f"{'z' * at}Z{'z' * (31 - at)}",) for at in range(32))
    # One bit, in every position of two keys.
    base = [b"\x00" * 16, b"\x01" * 16]
    for key, at, bit in product(range(2), range(16), range(7)):
        changed = [bytearray(each) for each in base]
        changed[key][at] ^= 1 << bit
        yield tuple(each.decode() for each in changed)


def test_near_sets_differ_in_their_fingerprint() -> None:
    """Swapped ends, moved characters, repeated keys, zero bytes and single bits all change the
    fingerprint."""
    sets = {tuple(sorted(each)) for each in near_sets()}
    assert len({digest(each) for each in sets}) == len(sets) > 700


def test_ordered_numbers_differ_in_their_fingerprint() -> None:
    """Windows and pairs of sequential numbers, as the partitions of a job have them, do not collide. Half of
    a fingerprint hardly ever collides either."""
    keys = [f"flight-{number:08d}" for number in range(2_000)]
    sets = [keys[start : start + 5] for start in range(len(keys) - 5)]
    sets += [[one, other] for one in keys[:60] for other in keys[100:160]]
    assert len({digest(each) for each in sets}) == len(sets)
    single = []
    for key in keys:
        fingerprint = Fingerprint()
        fingerprint.add(pa.array([key]))
        single.append(fingerprint._sums)
    for lane in (0, 1):
        assert len({sums[lane] & 0xFFFFFFFF for sums in single}) > len(keys) - 3
        assert len({sums[lane] >> 32 for sums in single}) > len(keys) - 3
