"""SQLite: a database is a file, and the server is this process."""

import shutil
import sqlite3
import tempfile
from pathlib import Path
from uuid import uuid4

from sqlalchemy import URL

from tests.servers.server import Server

MEMORY = Path("/dev/shm")  # noqa: S108 - a folder of its own is made in it
ENOUGH = 2**30


def _memory() -> Path | None:
    """A folder in memory, where a commit does not wait for a disk: tests kill processes, not machines. None
    if there is no such folder, or if it is small."""
    return MEMORY if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free >= ENOUGH else None


def find() -> Server:
    """The SQLite that comes with Python, with its files in a temporary folder."""
    folder = Path(tempfile.mkdtemp(prefix="sqlite-", dir=_memory()))

    def new() -> URL:
        return URL.create("sqlite", database=str(folder / f"{uuid4().hex}.db"))

    def copy(template: URL) -> URL:
        url = new()
        shutil.copyfile(str(template.database), str(url.database))
        return url

    def drop(gone: URL) -> None:
        file = Path(str(gone.database))
        for leftover in file.parent.glob(f"{file.name}*"):
            leftover.unlink()

    return Server(
        name="sqlite",
        origin="standard library",
        version=sqlite3.sqlite_version,
        admin_url=new(),
        fresh_database=new,
        new_database=new,
        drop_database=drop,
        copy_database=copy,
        stop=lambda: shutil.rmtree(folder, ignore_errors=True),
    )
