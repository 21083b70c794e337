"""The stand-in for a broker in act three: a queue in an SQLite file.

It delivers to nobody; it only keeps what it was given, whichever process is killed. The act needs no more.
(A real broker also survives a power cut; for that, this one would have to wait longer.)
"""

import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path

from outbox import Accepted, Envelope, Outcome

LATENCY = 0.0005
"""Seconds between storing a message and confirming it, as with a broker in the same building."""
PATIENCE = 10
"""Seconds to wait while another process writes."""


class FileBroker:
    """A queue that survives its writers; also a `Publisher`, so that a relay can write to it."""

    concurrent = False
    """Its connection belongs to the thread that has opened it."""

    def __init__(self, file: Path) -> None:
        self._connection = sqlite3.connect(file, timeout=PATIENCE)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = NORMAL")
        self._connection.execute("CREATE TABLE IF NOT EXISTS message (id TEXT NOT NULL, body TEXT NOT NULL)")

    def put(self, *messages: tuple[str, str]) -> None:
        """Store messages, each an id and a body; when this returns, they are stored."""
        with self._connection:
            self._connection.executemany("INSERT INTO message VALUES (?, ?)", messages)
        time.sleep(LATENCY)

    def send(self, batch: Sequence[Envelope]) -> list[Outcome]:
        """Store an outbox's messages."""
        self.put(*((message.id, message.payload.decode()) for message in batch))
        return [Accepted()] * len(batch)

    def messages(self) -> list[tuple[str, str]]:
        """All messages that were ever sent, in order."""
        return self._connection.execute("SELECT id, body FROM message ORDER BY rowid").fetchall()

    def close(self) -> None:
        """Close the file."""
        self._connection.close()
