"""The spool of a partition: it returns each key once, in byte order, within its memory limit, however large
the partition is."""

import os
import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark._executor.spool import DIGEST, KEY, Spool

MEBIBYTE = 2**20
Rows = Sequence[tuple[str, int]]

few_keys = st.sampled_from(
    ["a", "A", "a ", "aa", "b", "é", "e\u0301", "\uffff", "\U00010000", "\U0010ffff", "z" * 40]
)
many_keys = st.text("abé\U0001f642", min_size=1, max_size=6)
batches_of_keys = st.lists(st.lists(few_keys | many_keys, max_size=30), max_size=12)
memories = st.sampled_from([1, 100, 300, 1_000, 5_000, MEBIBYTE])


def batch(rows: Rows, *, width: int = 0) -> pa.RecordBatch:
    """Rows with a number, a text of `width` characters, and a key."""
    numbers, filler = [number for _, number in rows], [os.urandom(width // 2).hex() for _ in rows]
    columns = {
        "number": pa.array(numbers, pa.int64()),
        "filler": pa.array(filler, pa.string()),
        KEY: pa.array([key for key, _ in rows], pa.string()),
    }
    return pa.record_batch(columns)


def numbered(batches: Sequence[Sequence[str]]) -> list[list[tuple[str, int]]]:
    """The keys, each with its position in the order of arrival."""
    numbers = iter(range(sum(map(len, batches))))
    return [[(key, next(numbers)) for key in keys] for keys in batches]


def read(spool: Spool) -> list[tuple[str, int]]:
    """All rows, in the order of the tables."""
    rows: list[tuple[str, int]] = []
    for table in spool.tables():
        assert table.column_names[-1] == KEY
        rows += zip(table.column(KEY).to_pylist(), table.column("number").to_pylist(), strict=True)
    return rows


@settings(max_examples=100, deadline=None)
@given(keys=batches_of_keys, memory=memories)
def test_each_key_once_in_byte_order(keys: list[list[str]], memory: int) -> None:
    """All tables together contain each key once, with the row that arrived first, in byte order of the
    keys. They can be read again, even after a read that was broken off. The spool counts all rows that
    were added."""
    arrived = numbered(keys)
    first: dict[str, int] = {}
    for rows in arrived:
        for key, number in rows:
            first.setdefault(key, number)
    expected = sorted(first.items(), key=lambda item: item[0].encode())
    with Spool(memory) as spool:
        for rows in arrived:
            spool.add(batch(rows))
        spool.finish()
        assert spool.rows == sum(map(len, arrived))
        abandoned = spool.tables()
        next(abandoned, None)
        assert read(spool) == expected
        assert read(spool) == expected


def test_parts_of_larger_batches() -> None:
    """Slices of larger batches, and nested columns beside the key, are returned unchanged."""
    rows = [(f"{number % 7}", number) for number in range(100)]
    with Spool(500) as spool:
        larger = batch([("before", -1), *rows, ("after", -1)])
        for at in range(0, 100, 10):
            spool.add(larger.slice(1 + at, 10))
        spool.finish()
        assert read(spool) == [(f"{number}", number) for number in range(7)]
    nested = pa.record_batch(
        {
            "list": [[1], None, []],
            "map": pa.array([[("a", 1)], [], None], pa.map_(pa.string(), pa.int32())),
            KEY: ["c", "a", "b"],
        }
    )
    with Spool(1) as spool:
        spool.add(nested)
        spool.add(nested)
        spool.finish()
        back = pa.concat_tables(spool.tables())
    assert back.to_pylist() == [nested.to_pylist()[at] for at in (1, 2, 0)]


def random_keys(count: int) -> Iterator[str]:
    """Keys in random order."""
    return (os.urandom(16).hex() for _ in range(count))


def ordered_keys(count: int) -> Iterator[str]:
    """Keys in ascending order, as from a sequence."""
    return (f"{number:012d}" for number in range(count))


def reversed_keys(count: int) -> Iterator[str]:
    """Keys in descending order."""
    return (f"{number:012d}" for number in reversed(range(count)))


def crowded_keys(count: int) -> Iterator[str]:
    """Half of the rows have the same key, and the others sort next to it."""
    return (random.choice(["m", f"m{random.randrange(count)}"]) for _ in range(count))


def test_memory_is_bounded_where_some_rows_are_large() -> None:
    """No table is larger than the memory limit, even if all large rows sort next to each other."""
    largest, rows_in = 0, 0
    with Spool(MEBIBYTE) as spool:
        for _ in range(50):
            spool.add(batch([(f"a{key}", 0) for key in random_keys(1_000)], width=20))
            spool.add(batch([(f"z{key}", 0) for key in random_keys(10)], width=50_000))
        spool.finish()
        for table in spool.tables():
            largest = max(largest, table.nbytes)
            rows_in += table.num_rows
    assert rows_in == 50_500
    assert largest <= MEBIBYTE


contents = st.lists(st.lists(st.tuples(few_keys, st.sampled_from("xyz")), max_size=30), max_size=12)


@settings(max_examples=200, deadline=None)
@given(rows=contents, memory=memories)
def test_rows_with_other_content_than_the_first(rows: list[list[tuple[str, str]]], memory: int) -> None:
    """Each row's digest is compared with that of the first row with its key, with the same result on every
    read. The number of mismatches is exact if all rows fit into memory; otherwise it is zero if and only if
    there are none."""
    first: dict[str, str] = {}
    expected = [key for each in rows for key, its in each if first.setdefault(key, its) != its]
    with Spool(memory) as spool:
        for each in rows:
            digests = pa.array([its.encode() for _, its in each], pa.binary())
            spool.add(batch([(key, 0) for key, _ in each]).append_column(DIGEST, digests))
        spool.finish()
        for _ in range(2):
            kept = pa.concat_tables(spool.tables()) if first else None
            assert kept is None or kept.column(DIGEST).to_pylist() == [
                first[key].encode() for key in kept.column(KEY).to_pylist()
            ]
            assert bool(spool.mismatches) == bool(expected)
            assert memory < MEBIBYTE or spool.mismatches == len(expected)


@pytest.mark.parametrize(
    ("keys", "width", "total"),
    [
        *((random_keys, width, total) for width, total in ((40_000, 60), (2_000, 20), (60, 8))),
        *((keys, 2_000, 20) for keys in (ordered_keys, reversed_keys, crowded_keys)),
    ],
)
def test_memory_is_bounded(keys: Callable[[int], Iterator[str]], width: int, total: int) -> None:
    """A spool of one megabyte receives tens of megabytes: it never uses more than a few megabytes of memory,
    and no table is larger than one, with rows of 60 bytes and of 40 kilobytes, in any order."""
    before, peak, largest, rows_in = pa.total_allocated_bytes(), 0, 0, 0
    in_batch = max(1, MEBIBYTE // 8 // width)
    expected = list(keys(total * MEBIBYTE // (width + 60)))
    with Spool(MEBIBYTE) as spool:
        for at in range(0, len(expected), in_batch):
            spool.add(batch([(key, 0) for key in expected[at : at + in_batch]], width=width))
            peak = max(peak, pa.total_allocated_bytes() - before)
        spool.finish()
        for table in spool.tables():
            largest = max(largest, table.nbytes)
            peak = max(peak, pa.total_allocated_bytes() - before)
            rows_in += table.num_rows
        del table
    assert rows_in == len(set(expected))
    assert largest <= MEBIBYTE
    assert peak <= 6 * MEBIBYTE
    assert pa.total_allocated_bytes() - before < MEBIBYTE // 2


def test_a_spool_that_fits_has_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition that fits into memory is not written to disk."""
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: pytest.fail("a file was made"))
    with Spool(MEBIBYTE) as spool:
        spool.add(batch([("a", 1)]))
        spool.finish()
        assert read(spool) == [("a", 1)]
    with Spool(1) as spool:
        spool.finish()
        assert read(spool) == []


@pytest.mark.parametrize("fails", ["not", "while it is filled", "while it is read"])
def test_the_file_is_gone_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str) -> None:
    """When the spool is closed, also by an error, its temporary file is closed, and it has no name in the
    folder."""
    files: list[Any] = []
    make = tempfile.TemporaryFile

    def recording(**options: Any) -> Any:
        files.append(make(**options, dir=tmp_path))
        return files[-1]

    monkeypatch.setattr(tempfile, "TemporaryFile", recording)
    with pytest.raises(ZeroDivisionError), Spool(1_000) as spool:  # noqa: PT012
        for number in range(50):
            spool.add(batch([(str(number), number)], width=100))
        if fails == "while it is filled":
            raise ZeroDivisionError
        spool.finish()
        for _ in spool.tables():
            if fails == "while it is read":
                raise ZeroDivisionError
        raise ZeroDivisionError
    assert [file.closed for file in files] == [True]
    assert list(tmp_path.iterdir()) == []
