"""Modules run as programs, in processes forked from one that has already loaded them.

Starting Python and importing everything takes a second, which is most of what a short command does.
"""

import multiprocessing
import os
import runpy
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from sqlalchemy import URL

from tests.support.program import ROOT, command

_SERVER = multiprocessing.get_context("forkserver")
_LOADED = [
    "alembic.command",
    "examples._outbox",
    "inbox_outbox._app",
    "psycopg",
    "pymysql",
    "pytest",
    "tests.support.forked",
    "tests.support.relay.lane_worker",
    "tests.support.relay.worker",
    "tests.support.status_mode.worker",
]


def preload() -> None:
    """Name the modules that the server has to load. A process has one server, and the last call counts: make
    it after all modules have been imported, since examples call it, too."""
    _SERVER.set_forkserver_preload(_LOADED)


def run_module(module: str, *arguments: str, url: URL | None = None) -> subprocess.CompletedProcess[str]:
    """Run a module on a database to its end, as `python -m` does."""
    line = command(module, *arguments, url=url)
    return subprocess.CompletedProcess(line, *run_forked(_module, line[line.index(module) :]))


def run_forked(
    main: Callable[[], object], arguments: list[str], timeout: float = 120
) -> tuple[int, str, str]:
    """Call a function as a program with these arguments would; return its exit code and what it wrote to
    stdout and stderr. Warnings are errors.

    Raises:
        subprocess.TimeoutExpired: it has not ended, and was killed.
    """
    with TemporaryDirectory() as folder:
        out, err = (Path(folder) / name for name in ("out", "err"))
        child = _SERVER.Process(target=_call, args=(main, arguments, dict(os.environ), out, err))
        child.start()
        child.join(timeout)
        if child.exitcode is None:
            child.kill()
            child.join()
            raise subprocess.TimeoutExpired(arguments, timeout)
        return child.exitcode, out.read_text(), err.read_text()


def _module() -> None:
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


def _call(
    main: Callable[[], object], arguments: list[str], environment: dict[str, str], out: Path, err: Path
) -> None:
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(ROOT)
    for stream, path in ((sys.stdout, out), (sys.stderr, err)):
        file = os.open(path, os.O_WRONLY | os.O_CREAT)
        os.dup2(file, stream.fileno())
        os.close(file)
    warnings.simplefilter("error")
    sys.argv = arguments
    main()
