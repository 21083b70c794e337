"""A primary and its standby, which can be promoted after the primary has been killed."""

import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Self

import pymysql
from psycopg import sql
from sqlalchemy import URL, Engine, NullPool, create_engine

from examples.embedded_postgres import EmbeddedPostgres, run
from tests.servers import freezing, mariadb, mysql_like
from tests.servers.server import Missing

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


class MariaDBPair:
    """A MariaDB and its replica."""

    def __init__(self) -> None:
        found = mariadb.program()
        assert not isinstance(found, Missing)
        program, make_data = found
        settings = [*mysql_like.SETTINGS, *mariadb.SETTINGS, "--log-bin=binlog"]
        with ExitStack() as started:
            servers = []
            for number in (1, 2):
                own = [*settings, f"--server-id={number}"]
                servers.append(mysql_like.LocalMySQL(program, make_data, own))
                started.callback(servers[-1].stop)
            self.primary, self.standby = servers
            follow = (
                f"CHANGE MASTER TO MASTER_HOST='127.0.0.1', MASTER_PORT={self.primary.url.port}, "
                "MASTER_USER='root', MASTER_USE_GTID=slave_pos"
            )
            self._on(self.standby, follow, "START SLAVE")
            self._on(self.primary, "CREATE DATABASE app CHARACTER SET utf8mb4")
            self._started = started.pop_all()
        self._current = self.primary

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._started.close()

    @property
    def url(self) -> URL:
        """The database on the server that accepts writes."""
        return self._current.url.set(database="app")

    def engine(self, **options: Any) -> Engine:
        """An engine that looks for the server that accepts writes each time it connects."""

        def connect() -> Any:
            return pymysql.connect(host="127.0.0.1", port=self.url.port or 0, user="root", database="app")

        return create_engine("mysql+pymysql://", creator=connect, **options)

    def wait_for_standby(self) -> None:
        """Return once the replica has everything that was committed."""
        ((place,),) = self._on(self.primary, "SELECT @@gtid_binlog_pos")
        ((waited,),) = self._on(self.standby, f"SELECT MASTER_GTID_WAIT('{place}', {SOON})")
        assert waited == 0

    @contextmanager
    def cut_off(self) -> Iterator[None]:
        """From now on, nothing that is committed reaches the replica."""
        self._on(self.standby, "STOP SLAVE")
        yield

    def fail_over(self) -> None:
        """Kill the primary for good, and promote the replica."""
        self.primary.kill()
        self._on(self.standby, "RESET SLAVE ALL")
        self._current = self.standby

    @staticmethod
    def _on(server: mysql_like.LocalMySQL, *statements: str) -> Any:
        engine = create_engine(server.url, isolation_level="AUTOCOMMIT", poolclass=NullPool)
        with engine.connect() as connection:
            results = [connection.exec_driver_sql(each) for each in statements]
            return results[-1].all() if results[-1].returns_rows else None
