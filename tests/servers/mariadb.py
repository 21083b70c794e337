"""MariaDB, which uses MySQL's protocol but is a different server."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.servers import mysql_like
from tests.servers.server import Missing, Server

SETTINGS = ("--sync-frm=OFF",)  # tests kill processes, not machines


def find() -> Server | Missing:
    """MariaDB from the environment, Docker or the program on this machine."""
    return mysql_like.find("mariadb", "mariadb:11", _from_program)


def _from_program() -> Server | Missing:
    found = program()
    return found if isinstance(found, Missing) else mysql_like.from_program("mariadb", *found, SETTINGS)


def program() -> tuple[str, Callable[[Path], Sequence[str]]] | Missing:
    """The server program, and the command that initialises a data folder for it."""
    server = shutil.which("mariadbd", path=mysql_like.PROGRAM_PATH)
    installer = shutil.which("mariadb-install-db", path=mysql_like.PROGRAM_PATH)
    if server is None or installer is None:
        return Missing("mariadbd and mariadb-install-db are not installed")

    def make_data(folder: Path) -> list[str]:
        return [
            installer,
            "--no-defaults",
            f"--datadir={folder}",
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
        ]

    return server, make_data
