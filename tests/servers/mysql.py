"""MySQL. A ``mysqld`` that is MariaDB under its old name does not count."""

import os
import shutil
import subprocess
from pathlib import Path

from tests.servers import mysql_like
from tests.servers.server import Missing, Server

PROGRAM_VARIABLE = "INBOX_OUTBOX_TEST_MYSQLD"
# No second port for another protocol, and no folder for LOAD DATA that packages put elsewhere.
SETTINGS = ("--mysqlx=OFF", "--secure-file-priv=NULL", "--skip-log-bin")


def find() -> Server | Missing:
    """MySQL from the environment, Docker or the program on this machine."""
    return mysql_like.find("mysql", "mysql:8.4", _from_program)


def _from_program() -> Server | Missing:
    installed = shutil.which("mysqld", path=mysql_like.PROGRAM_PATH)
    program = os.environ.get(PROGRAM_VARIABLE) or installed
    if program is None or _is_mariadb(program):
        return Missing(f"no mysqld is installed and {PROGRAM_VARIABLE} is not set")

    def make_data(folder: Path) -> list[str]:
        return [program, "--no-defaults", "--initialize-insecure", f"--datadir={folder}"]

    return mysql_like.from_program("mysql", program, make_data, settings=SETTINGS)


def _is_mariadb(program: str) -> bool:
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    return "MariaDB" in version.stdout
