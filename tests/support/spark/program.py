"""Programs of this repository that start their own Spark."""

from pathlib import Path

import pytest
from sqlalchemy import URL

from examples import _spark
from tests.servers import Missing
from tests.support.present import present
from tests.support.program import command, run

from . import classes as spark_classes
from . import cluster as spark_cluster


def need_spark() -> None:
    """Skip the test if Spark cannot start; fail it if Spark is required. Make Spark start quickly."""
    reason = _spark.missing()
    present("spark", Missing(reason) if reason else None)
    spark_classes.share(spark_cluster.FRUGAL)


def temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set the folder for the files of programs that the test runs."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


def output(module: str, *arguments: str, url: URL | None = None) -> list[str]:
    """The lines that a program prints; it must write nothing to stderr, and exit with 0."""
    done = run(command(module, *arguments, url=url), timeout=400)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    return done.stdout.splitlines()


def assert_nothing_left(folder: Path) -> None:
    """Assert that no file is left in the program's temporary folder, and no process that uses it."""
    assert not _spark.processes(str(folder))
    assert not list(folder.iterdir())
