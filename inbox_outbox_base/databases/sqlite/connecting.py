"""SQLite: a file, which other processes have to find."""

from pathlib import Path

from sqlalchemy import URL

from inbox_outbox_base.checks.connecting import Connecting


class SQLiteConnecting(Connecting):
    """Python's own driver."""

    driver = "pysqlite"
    is_default = True

    def reachable(self, url: URL) -> URL:
        # Absolute: tasks run in folders of their own.
        if not url.database or url.database == ":memory:" or url.database.startswith("file:"):
            raise ValueError("tasks can reach an SQLite database only if it is a file")
        return url.set(database=str(Path(url.database).absolute()))
