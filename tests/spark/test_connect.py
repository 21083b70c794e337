"""Spark Connect: the writer, the streams and the data source work from the wheel, without access to the JVM.
No error message and no log line of a job contains the password."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from tests.project.test_wheel import wheel
from tests.support.database import Database
from tests.support.present import present
from tests.support.spark import cluster as spark_cluster
from tests.support.spark.writes import make_result, taken, written

pytestmark = pytest.mark.long

__all__ = ["wheel"]  # a fixture

PROGRAM = Path(__file__).parents[1] / "support" / "spark" / "connect_program.py"
SECRET = "hunter2"  # noqa: S105 - the server asks for none
LOGGING = spark_cluster.LOGGING.replace("rootLogger.level = error", "rootLogger.level = info")


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the installed contents of the wheel."""
    present("spark", spark_cluster.missing())
    folder = tmp_path_factory.mktemp("installed")
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--target",
        str(folder),
        str(wheel),
    ]
    subprocess.run(command, check=True)
    return folder


@pytest.fixture
def seen(postgres: Database, installed: Path, tmp_path: Path) -> dict[str, Any]:
    """What the program recorded, and everything that it and Spark printed."""
    make_result(postgres)
    with postgres.engine().begin() as connection:
        connection.execute(text("CREATE TABLE too_narrow (id varchar(2), amount smallint)"))
    (tmp_path / "log4j2.properties").write_text(LOGGING)
    (tmp_path / "spark-defaults.conf").write_text(
        f"spark.driver.extraJavaOptions {spark_cluster.JAVA_OPTIONS}\nspark.sql.shuffle.partitions 2\n"
    )
    url = postgres.url.set(username="postgres", password=SECRET).render_as_string(hide_password=False)
    environment = {
        **os.environ,
        "PYTHONPATH": str(installed),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_CONF_DIR": str(tmp_path),
        "SPARK_LOCAL_DIRS": str(tmp_path / "local"),
    }
    done = subprocess.run(
        [sys.executable, "-P", str(PROGRAM), url, str(tmp_path)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5_000:]
    found: dict[str, Any] = json.loads((tmp_path / "seen.json").read_text())
    return {**found, "printed": done.stdout + done.stderr}


def test_everything_works_with_spark_connect(
    postgres: Database, installed: Path, seen: dict[str, Any]
) -> None:
    """Reports, replays, unseen rows, both ways of streaming, and the data source with defaults from the
    session work. Errors on the driver and in tasks say what is wrong, and neither they nor Spark's logs
    contain the URL's password."""
    engine = postgres.engine()
    assert all(Path(path).is_relative_to(installed) for path in seen["packages"])
    assert ".connect." in seen["session"]
    first, again, trusted, whole = seen["written"]
    assert (first["rows"], first["new"], first["partitions"], first["replayed"]) == (100, 100, 3, 0)
    for replay in (again, trusted):
        assert (replay["rows"], replay["new"], replay["replayed"], replay["transport"]) == (
            100,
            100,
            3,
            "none",
        )
    assert (whole["new"], whole["partitions"]) == (100, 1)
    assert seen["unseen"] == 100
    keys, streamed = [f"k{number}" for number in range(100)], [f"s{number}" for number in range(35)]
    for consumer, expected in {
        "written": keys,
        "whole": keys,
        "saved": keys,
        "batches": streamed,
        "streamed": streamed,
        "failed": [],
    }.items():
        assert taken(engine, consumer) == sorted(expected), consumer
    assert len(written(engine)) == 3 * len(keys) + 2 * len(streamed)
    check_errors(seen["errors"])
    assert len(seen["printed"]) > 10_000, "Spark's logs are not there"
    leaks = [line for line in seen["printed"].splitlines() if SECRET in line]
    assert leaks == [], f"{len(leaks)} lines, the first: {leaks[0]:.2000}"


def check_errors(errors: list[str]) -> None:
    """The error of each job that was meant to fail names what was wrong."""
    expected = [
        "InvalidOption: truncate='true'",
        "InvalidOption: key: missing",
        "ZeroDivisionError: refused",
        "InvalidRow: keys of 0 to 0 bytes",
        "ColumnMismatch: column 'extra'",
        'column "nonsense" does not exist',
        "column 'id': text longer than the target's 2 characters",
    ]
    for said, part in zip(errors, expected, strict=True):
        assert part in said, said[:3_000]
        assert SECRET not in said
