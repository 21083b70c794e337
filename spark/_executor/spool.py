"""One partition's rows on the executor, in byte order of their keys, within a fixed amount of memory.

Rows are sorted in runs. A partition that fits is one run in memory; a larger one is written to a temporary
file run by run and read back range by range (an external merge sort; Knuth, volume 3, 5.4).
"""

import tempfile
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc

KEY = "inbox_key"
"""The column of the stored key in each table here."""

DIGEST = "inbox_digest"
"""The column of the digest, if there is one."""

_BLOCKS = 64
"""A block, the unit of writing and reading back, takes at most this fraction of the memory: 1 / 64."""

_RANGE = 4
"""The blocks that begin in one range take at most this fraction of the memory together: 1 / 4."""


@dataclass(slots=True)
class _SortedRun:
    """One sorted run in the file: its blocks, the first key of each, and its bytes."""

    blocks: list[int] = field(default_factory=list)
    firsts: list[str] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)


class Spool:
    """Takes Arrow batches, and returns sorted tables with unique keys: of rows with the same key, the first
    is kept."""

    def __init__(self, memory: int) -> None:
        self._memory = memory
        self._pending: list[pa.RecordBatch] = []
        self._bytes = 0
        self._runs: list[_SortedRun] = []
        self._blocks = 0
        self._writer: Any = None
        self._file: Any = None
        self._in_runs = 0
        self.rows = 0
        self.mismatches = 0
        """How many rows are left out whose digest differs from that of their key's first row, among the
        tables returned so far. Within a run that was written to the file, they are compared with the run's
        first row."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows."""
        if batch.num_rows == 0:
            return
        self._pending.append(batch)
        self._bytes += batch.nbytes
        self.rows += batch.num_rows
        if self._bytes >= self._memory:
            self._write_run()

    def finish(self) -> None:
        """End adding rows."""
        if self._file is None:
            return
        if self._pending:
            self._write_run()
        self._writer.close()
        self._file.flush()

    def tables(self) -> Iterator[pa.Table]:
        """The rows, in byte order of their keys; may be called repeatedly."""
        if self._file is not None:
            self.mismatches = self._in_runs
            yield from self._merged()
        elif self._pending:
            # The table is made only when needed: a partition that has already committed is only read.
            table, differing = _sorted_once(self._pending)
            self._pending = table.to_batches()
            self.mismatches += differing
            yield table

    def _write_run(self) -> None:
        table, differing = _sorted_once(self._pending)
        self._in_runs += differing
        self._pending, self._bytes = [], 0
        if self._file is None:
            # A file without a name: a killed worker leaves nothing behind.
            self._file = tempfile.TemporaryFile(prefix="inbox-outbox-")  # noqa: SIM115 - closed in __exit__
            self._writer = pa.ipc.new_file(self._file, table.schema)
        run = _SortedRun()
        for block in _blocks(table.to_batches(), self._memory // _BLOCKS):
            self._writer.write_batch(block)
            run.blocks.append(self._blocks)
            run.firsts.append(block.column(KEY)[0].as_py())
            run.sizes.append(block.nbytes)
            self._blocks += 1
        self._runs.append(run)

    def _merged(self) -> Iterator[pa.Table]:
        reader = pa.ipc.open_file(self._file)
        for low, high in self._ranges():
            # The runs are in the order in which their rows came, so that the first row of each key is kept.
            parts = [part for run in self._runs for part in _slices(reader, run, low, high)]
            table, differing = _sorted_once(parts)
            self.mismatches += differing
            yield table

    def _ranges(self) -> Iterator[tuple[str, str | None]]:
        """Ranges of keys, so small that their rows fit in memory. To merge a range, read the few blocks that
        begin in it, and for each run one block that began before it."""
        edges: list[str] = []
        size = self._memory
        for first, more in sorted(
            pair for run in self._runs for pair in zip(run.firsts, run.sizes, strict=True)
        ):
            # Blocks that begin with the same key stay in one range: all rows of a key are merged together.
            if size + more > self._memory // _RANGE and first not in edges[-1:]:
                edges.append(first)
                size = 0
            size += more
        yield from zip(edges, [*edges[1:], None], strict=True)


def _blocks(batches: list[pa.RecordBatch], limit: int) -> Iterator[pa.RecordBatch]:
    """The batches in slices of at most `limit` bytes, or of one row."""
    for batch in batches:
        if batch.num_rows > 1 and batch.nbytes > limit:
            half = batch.num_rows // 2
            yield from _blocks([batch.slice(0, half), batch.slice(half)], limit)
        else:
            yield batch


def _slices(reader: Any, run: _SortedRun, low: str, high: str | None) -> Iterator[pa.RecordBatch]:
    """A run's rows whose key is at least `low` and less than `high`."""
    at = max(0, bisect_right(run.firsts, low) - 1)
    while at < len(run.blocks) and (high is None or run.firsts[at] < high):
        block = reader.get_batch(run.blocks[at])
        keys = block.column(KEY)
        wanted = pc.greater_equal(keys, low)
        if high is not None:
            wanted = pc.and_(wanted, pc.less(keys, high))
        yield block.filter(wanted)
        at += 1


def _sorted_once(batches: list[pa.RecordBatch]) -> tuple[pa.Table, int]:
    """The rows sorted by key, with only the first row of each key; and how many rows are left out whose
    digest differs from the first row's."""
    table = pa.Table.from_batches(batches)
    keys = table.column(KEY).combine_chunks()
    if pc.all(pc.less(keys[:-1], keys[1:])).as_py():  # as keys by number or time often come
        return table.combine_chunks(), 0
    # Arrow sorts text by bytes, and its sort is stable.
    table = table.take(pc.sort_indices(table.column(KEY))).combine_chunks()
    keys = table.column(KEY).chunk(0)
    differs = pc.not_equal(keys[1:], keys[:-1])
    if pc.all(differs).as_py():
        return table, 0
    is_first = pa.concat_arrays([pa.array([True]), differs])
    kept = table.filter(is_first).combine_chunks()
    if DIGEST not in table.column_names:
        return kept, 0
    places = pc.subtract(pc.cumulative_sum(is_first.cast(pa.int64())), 1)
    firsts = kept.column(DIGEST).chunk(0).take(places)
    return kept, pc.sum(pc.not_equal(table.column(DIGEST).chunk(0), firsts)).as_py() or 0
