"""Keys and fingerprints, computed for whole Arrow columns.

The stored key is the same as in `inbox.Inbox`: text unchanged, several columns as a compact JSON array.
"""

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from inbox_outbox_base.checks.keys import LONGEST_KEY, encode_key
from inbox_outbox_base.databases.arrow import text
from inbox_outbox_base.errors.inbox import InvalidKey
from inbox_outbox_base.errors.spark import ColumnMismatch, InvalidRow

_MIX = (
    (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)),
    (np.uint64(0xD6E8FEB86659FD93), np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)),
)
"""Two sets of odd constants (splitmix64, murmur3 and rrmxmx): 128 bits from two independent mixes."""

_MASKS = np.array([(1 << 8 * count) - 1 for count in range(9)], dtype=np.uint64)


def check_type(name: str, kind: pa.DataType) -> None:
    """Reject a key column whose values have more than one text form.

    Raises:
        ColumnMismatch: not text, a whole number, a date or a timestamp.
    """
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    if not (is_text or _is_number(kind) or pa.types.is_date(kind) or pa.types.is_timestamp(kind)):
        raise ColumnMismatch(
            f"key column {name!r} has the type {kind}: expected a string, a whole number, a date or a "
            "timestamp; cast it to a string first"
        )


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or (pa.types.is_decimal(kind) and kind.scale == 0))


def encode(columns: Sequence[pa.Array]) -> pa.StringArray:
    """The stored key of each row; NULL if a part of it is NULL.

    Raises:
        InvalidRow: a key is empty, longer than 512 bytes of UTF-8, contains a NUL, or is not UTF-8; or it has
            a year beyond 32767.
    """
    try:
        for column in columns:
            # Spark does not check Arrow data from a Python function: its text may be any bytes.
            column.validate(full=True)
        keys = _text(columns[0]) if len(columns) == 1 else _joined(columns)
    except pa.ArrowInvalid:
        raise InvalidRow("a key is not valid UTF-8, or not a value of its column's type") from None
    except InvalidKey:
        raise InvalidRow(f"a key is not 1 to {LONGEST_KEY} bytes of UTF-8, or has a NUL character") from None
    lengths = pc.min_max(pc.binary_length(keys)).as_py()
    if lengths["max"] is not None and not 1 <= lengths["min"] <= lengths["max"] <= LONGEST_KEY:
        raise InvalidRow(
            f"keys of {lengths['min']} to {lengths['max']} bytes: expected 1 to {LONGEST_KEY} bytes of UTF-8"
        )
    if (_bytes(keys.drop_null())[0] == 0).any():
        raise InvalidRow("a key contains a NUL character")
    return keys


def _text(column: pa.Array) -> pa.StringArray:
    return text(in_utc(column))


def in_utc(column: pa.Array) -> pa.Array:
    """Timestamps in UTC, in microseconds; other values as they are."""
    if not pa.types.is_timestamp(column.type):
        return column
    # Arrow data has the session's time zone, which may be another one tomorrow.
    return column.cast(pa.timestamp("us", column.type.tz and "UTC"))


def _joined(columns: Sequence[pa.Array]) -> pa.StringArray:
    parts = [_part(column) for column in columns]
    body = pc.binary_join_element_wise(*parts, pa.scalar(","), null_handling="emit_null")
    return pc.binary_join_element_wise("[", body, "]", "", null_handling="emit_null")


def _part(column: pa.Array) -> pa.StringArray:
    """One part of a JSON array."""
    part = _text(column)
    if _is_number(column.type):
        return part
    control = pc.any(pc.match_substring_regex(part, "[\x00-\x1f]")).as_py()
    if control:  # rare, and JSON has short forms for some of them
        return pa.array(
            [None if value is None else encode_key((value,))[1:-1] for value in part.to_pylist()], pa.string()
        )
    part = pc.replace_substring(pc.replace_substring(part, "\\", "\\\\"), '"', '\\"')
    return pc.binary_join_element_wise('"', part, '"', "", null_handling="emit_null")


def _bytes(keys: pa.StringArray) -> tuple[Any, Any]:
    """The UTF-8 of all keys in one buffer, and their offsets (the last offset is the end)."""
    _, offsets, data = keys.buffers()
    ends = np.frombuffer(offsets, np.int32)[keys.offset : keys.offset + len(keys) + 1].astype(np.int64)
    first, last = (int(ends[0]), int(ends[-1])) if len(ends) else (0, 0)
    body = np.frombuffer(data, np.uint8)[first:last] if data is not None else np.empty(0, np.uint8)
    return body, ends - first


class Fingerprint:
    """A number that identifies a set of keys, or of keys and digests, regardless of their order.

    Shuffles deliver rows in a different order each time, so the hashes of the keys are added up. This does
    not protect against keys that are chosen to collide.
    """

    def __init__(self) -> None:
        self.count = 0
        self._sums = [0, 0]

    def add(self, keys: pa.StringArray, digests: pa.BinaryArray | None = None) -> None:
        """Add keys, none of them NULL, with the digests of their rows."""
        if digests is not None:
            keys = pc.binary_join_element_wise(keys.cast(pa.binary()), digests, pa.scalar(b"\0"))
        body, ends = _bytes(keys)
        # Words are read at any byte offset, so the last key needs seven more bytes behind it.
        padded = np.concatenate([body, np.zeros(8, np.uint8)])
        words: Any = np.ndarray((len(body) + 1,), "<u8", padded.data, strides=(1,))
        starts, lengths = ends[:-1], np.diff(ends)
        self.count += len(keys)
        for lane, hashes in enumerate(_hashes(words, starts, lengths)):
            self._sums[lane] = (self._sums[lane] + int(hashes.sum(dtype=np.uint64))) % 2**64

    def digest(self) -> bytes:
        """16 bytes."""
        numbers = b"".join(number.to_bytes(8, "little") for number in (self.count, *self._sums))
        return blake2b(numbers, digest_size=16).digest()


def _hashes(words: Any, starts: Any, lengths: Any) -> Iterator[Any]:
    """The hashes of all keys, with each set of constants."""
    lanes = [lengths.astype(np.uint64) * step + first for step, first, _ in _MIX]
    shortest, longest = (int(lengths.min()), int(lengths.max())) if len(lengths) else (0, 0)
    for at in range(0, longest, 8):
        more: Any = slice(None) if at < shortest else np.flatnonzero(lengths > at)
        left = np.minimum(lengths[more] - at, 8)
        word = words[starts[more] + at] & _MASKS[left]
        for hashes, (step, first, second) in zip(lanes, _MIX, strict=True):
            mixed = (hashes[more] ^ word) * first
            hashes[more] = (mixed ^ (mixed >> np.uint64(32))) * second + step
    for hashes, (_, first, second) in zip(lanes, _MIX, strict=True):
        mixed = (hashes ^ (hashes >> np.uint64(30))) * first
        mixed = (mixed ^ (mixed >> np.uint64(27))) * second
        yield mixed ^ (mixed >> np.uint64(31))
