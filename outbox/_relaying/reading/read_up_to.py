"""How far a relay has read each bucket; the next scan starts there."""

from collections.abc import Iterable, Mapping, MutableMapping
from typing import Any
from weakref import WeakSet

from inbox_outbox_base.databases.relaying import ScanResult, Writers

_USED_BY = "outbox: relays that know this connection"


class Frontier:
    """A mark for each bucket. Every message up to the mark has been read: it has left, or the backlog knows
    it. No other one can appear there.

    The backlog can be forgotten at any time: the marks then go back to the lowest messages that it knew.
    """

    def __init__(self) -> None:
        self._starts: dict[int, int] = {}
        self._lows: dict[int, int] = {}
        """The marks that come from scans which left no topic out."""
        self._mark: Writers | None = None
        self._settled = 0

    def start(self, bucket: int) -> int:
        """The sequence above which the bucket's next scan starts."""
        return self._starts.get(bucket, 0)

    def starts(self) -> dict[int, int]:
        """The marks of all buckets that have one."""
        return dict(self._starts)

    def advance(self, places: Iterable[tuple[int, int]], found: ScanResult, *, paused: bool) -> None:
        """Raise the marks of the buckets that a scan has read from these places on."""
        if self._settled == 0:
            return
        read = dict.fromkeys(found.seen, self._settled)
        for letter in found.letters:
            if letter.bucket not in found.seen:
                read[letter.bucket] = max(letter.sequence, read.get(letter.bucket, 0))
        begun = dict(places)
        for bucket, sequence in read.items():
            start = self.start(bucket)
            if begun[bucket] > start:
                continue  # the scan started above the mark
            # Not above the settled sequence: a running transaction may still commit a lower one.
            self._starts[bucket] = max(start, min(self._settled, sequence))
            if not paused:
                self._lows[bucket] = self._starts[bucket]

    def go_back(self, lowest: Mapping[int, int]) -> None:
        """Forget the backlog: read on from its lowest messages, and read what was left out."""
        self._starts = self.marks(lowest)
        self._lows = dict(self._starts)

    def marks(self, lowest: Mapping[int, int]) -> dict[int, int]:
        """By bucket, the sequence up to which everything has left, given the lowest known messages."""
        return {bucket: min(low, lowest.get(bucket, low + 1) - 1) for bucket, low in self._lows.items()}

    def begin(self, marks: Mapping[int, int]) -> None:
        """Use these marks for buckets that have none yet."""
        self._starts = dict(marks) | self._starts
        self._lows = dict(marks) | self._lows

    def forget(self, bucket: int) -> None:
        """Start the bucket's next scan at its oldest message."""
        self._starts[bucket] = self._lows[bucket] = 0

    def keep(self, buckets: Iterable[int]) -> None:
        """Forget all other buckets: another relay may own them now."""
        kept = set(buckets)
        self._starts = {bucket: start for bucket, start in self._starts.items() if bucket in kept}
        self._lows = {bucket: low for bucket, low in self._lows.items() if bucket in kept}

    def is_new_connection(self, info: MutableMapping[Any, Any]) -> bool:
        """Whether the connection with this `info` is new: then the server may have crashed, and may draw the
        same sequence numbers again."""
        users = info.setdefault(_USED_BY, WeakSet())
        is_new = self not in users
        users.add(self)
        return is_new

    def start_over(self) -> None:
        """Forget everything."""
        self._starts, self._lows, self._mark, self._settled = {}, {}, None, 0

    def record_writers(self, writers: Writers | None) -> bool:
        """Record which transactions are writing. A sequence is settled once all transactions that were
        writing when it was drawn have ended: no lower message can appear any more, unless the numbers start
        over. If they have, this forgets everything and returns True."""
        if writers is None:
            return False
        mark = self._mark
        if mark is not None and (writers.origin != mark.origin or writers.highest < mark.highest):
            self.start_over()
            self._mark = writers
            return True
        if not writers.transactions:
            self._settled, self._mark = writers.highest, writers
        elif mark is None:
            self._mark = writers
        elif not (mark.transactions & writers.transactions or writers.are_prepared):
            self._settled, self._mark = mark.highest, writers
        return False
