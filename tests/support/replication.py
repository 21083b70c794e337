"""A primary and its standby, which can be promoted after the primary has been killed."""

import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from psycopg import sql

from examples.embedded_postgres import EmbeddedPostgres, run
from tests.servers import freezing

SOON = 30.0
"""Seconds within which replication has surely begun, or gone on."""


class Primary(EmbeddedPostgres):
    """A server with standbys."""

    def kill(self) -> None:
        """kill -9 of the server and all its processes, as in a power failure or when a machine is fenced:
        none of them commits or answers any more."""
        with self._connect() as connection:
            processes = connection.execute("SELECT pid FROM pg_stat_activity").fetchall()
        for process in [self._process.pid, *(pid for (pid,) in processes)]:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self._process.stop(signal.SIGKILL)

    def restart(self) -> None:
        """`kill`, and start it again at the same address."""
        self.kill()
        self.start()

    def start(self) -> None:
        """Start it again after `kill`."""
        self._process = self._start()

    def configure(self, **settings: str) -> None:
        """Change settings of the running server."""
        with self._connect() as connection:
            for name, value in settings.items():
                connection.execute(sql.SQL("ALTER SYSTEM SET {} = {}").format(sql.Identifier(name), value))
            connection.execute("SELECT pg_reload_conf()")

    @contextmanager
    def cut_off(self) -> Iterator[None]:
        """During the block, nothing that is committed here reaches the standby."""
        with self._connect() as connection:
            ((sender,),) = connection.execute("SELECT pid FROM pg_stat_replication").fetchall()
        freezing.freeze(sender)
        try:
            yield
        finally:
            with suppress(ProcessLookupError):
                freezing.thaw(sender)

    def wait_for_standby(self) -> None:
        """Return once the standby has everything that was committed."""
        self.until("SELECT count(*) FROM pg_stat_replication WHERE replay_lsn >= pg_current_wal_lsn()")

    def until(self, question: str) -> None:
        """Return once the answer is not 0; AssertionError if it stays 0."""
        deadline = time.monotonic() + SOON
        with self._connect() as connection:
            while connection.execute(question).fetchone() == (0,):
                assert time.monotonic() < deadline, question
                time.sleep(0.02)


class Standby(Primary):
    """A copy of a primary that follows it."""

    def __init__(self, primary: EmbeddedPostgres, settings: Mapping[str, str] | None = None) -> None:
        self._primary = primary
        super().__init__(settings)

    def promote(self) -> None:
        """Make it the primary."""
        with self._connect() as connection:
            assert connection.execute("SELECT pg_promote()").fetchone() == (True,)

    def _init_data(self) -> None:
        folder = self._folder / "data"
        place = ("--host=127.0.0.1", f"--port={self._primary.port}", "--username=postgres")
        options = ("--write-recovery-conf", "--checkpoint=fast", "--no-sync")
        run([self._bin / "pg_basebackup", f"--pgdata={folder}", *place, *options], self._user)
