"""The marks that are stored with the buckets: a relay that takes a bucket skips the messages that have left.

A mark follows from the numbers drawn, and from the ends of the transactions that drew them. Both come before
the mark in the database's log, so a crash or failover that keeps the mark keeps them, too.
"""

from collections.abc import Iterable

from sqlalchemy import Connection

from inbox_outbox_base.databases import member_statements
from inbox_outbox_base.databases.relaying import Relaying
from outbox._relaying.members import Bucket

from .scanning import Scanner

FAR = 10_000
"""How far a mark may be behind: no relay writes marks that have moved less."""


class Marks:
    """The marks of one relay's buckets."""

    def __init__(self, database: Relaying, scanner: Scanner) -> None:
        self._database = database
        self._scanner = scanner
        self._origin, self._highest = "", 0
        """The origin whose sequence was compared with the messages (another one may be that of a copy), and
        the highest number drawn by then. The frontier forgets its own with each new connection."""

    def tend(self, connection: Connection, epoch: int, owned: Iterable[Bucket]) -> bool:
        """Ask who is writing, start new buckets at their stored marks, and store marks that have moved far.

        Args:
            epoch: the relay's epoch.
            owned: the relay's buckets with their stored marks, read before.

        Returns:
            Whether any bucket had a stored mark.

        Raises:
            UnsafeSequence: the sequence of message numbers is cached per session, or is behind the messages.
        """
        writers = self._database.writers(connection)
        if writers is None:
            return False
        scanner, tables = self._scanner, self._database.tables
        stored = {row.bucket: row.mark or 0 for row in owned if row.mark_origin == writers.origin}
        highest = max(stored.values(), default=0)
        if writers.origin == self._origin:
            highest = max(highest, self._highest)
        went_back = scanner.frontier.record_writers(writers) or highest > writers.highest
        if went_back or writers.origin != self._origin:
            self._database.check_sequence(connection)
        self._origin, self._highest = writers.origin, writers.highest
        if went_back:
            scanner.start_over()
            connection.execute(member_statements.forget_marks(tables))
            stored = {}
        scanner.frontier.begin(stored)
        moved = [
            {"bucket_": bucket, "mark_": mark, "mark_origin_": writers.origin, "epoch_": epoch}
            for bucket, mark in scanner.marks().items()
            if not stored.get(bucket, 0) <= mark < stored.get(bucket, 0) + FAR
        ]
        if moved:
            connection.execute(member_statements.keep_mark(tables), moved)
        return bool(stored)

    def forget(self, connection: Connection, epoch: int, buckets: Iterable[int]) -> None:
        """Forget the stored marks of some buckets: there are messages below them."""
        nothing = [
            {"bucket_": bucket, "mark_": None, "mark_origin_": None, "epoch_": epoch} for bucket in buckets
        ]
        connection.execute(member_statements.keep_mark(self._database.tables), nothing)
