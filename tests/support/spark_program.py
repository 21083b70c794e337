"""Programs of this repository that start a Spark of their own."""

from pathlib import Path

import pytest
from sqlalchemy import URL

from examples import _spark
from tests import servers
from tests.support import spark_classes, spark_cluster
from tests.support.program import command, run


def need_spark() -> None:
    """Skip the test where Spark cannot start; fail it where Spark is required. Let it start quickly."""
    reason = _spark.missing()
    if reason and servers.is_required("spark"):
        pytest.fail(f"spark is required: {reason}")
    if reason:
        pytest.skip(f"spark: {reason}")
    spark_classes.share(spark_cluster.FRUGAL)


def temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where programs that the test runs put their files from now on."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


def output(module: str, *arguments: str, url: URL | None = None) -> list[str]:
    """The lines that a program prints; nothing on stderr, and an exit code of 0."""
    done = run(command(module, *arguments, url=url), timeout=400)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    return done.stdout.splitlines()


def assert_nothing_left(folder: Path) -> None:
    """No file in the folder that was the program's temporary one, and no process that knows of it."""
    assert not _spark.processes(str(folder))
    assert not list(folder.iterdir())
