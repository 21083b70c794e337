"""Different versions on driver and executors: a clear error, before anything is sent to the database."""

import pickle
import subprocess
import sys
from collections.abc import Iterable, Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import pytest
from pyspark import cloudpickle
from pyspark.sql.types import StringType, StructField, StructType

from inbox.errors import InvalidOption
from spark import InboxDataSource
from spark._driver.send_code import shipped
from spark.errors import VersionMismatch
from tests.support.database import Database
from tests.support.spark.writes import execute

ROWS = StructType([StructField("id", StringType(), nullable=False)])
EXECUTOR = """
import pickle, sys
sys.path.insert(0, sys.argv[1])
run = pickle.loads(sys.stdin.buffer.read())
try:
    print(list(run([1, 2])))
except Exception as error:
    print(f"{type(error).__name__}: {error}")
"""


def doubled(factor: int, numbers: Iterable[int]) -> Iterator[int]:
    """A function to send."""
    return (factor * number for number in numbers)


def packed(what: object) -> bytes:
    """The object, pickled as Spark pickles it."""
    sent: bytes = cloudpickle.dumps(what)  # type: ignore[no-untyped-call]
    return sent


def pretend(monkeypatch: pytest.MonkeyPatch, version: str | None) -> None:
    """Pretend that the package is installed in this version, or not at all."""
    real = metadata.version

    def found(name: str) -> str:
        if name != "inbox-outbox":
            return real(name)
        if version is None:
            raise metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(metadata, "version", found)


def test_the_same_version_runs() -> None:
    """With equal versions, the function arrives with its arguments."""
    sent = packed(shipped(doubled, 3))
    assert list(pickle.loads(sent)([1, 2])) == [3, 6]  # noqa: S301 - the test's own


@pytest.mark.parametrize("there", ["99.1", None])
def test_another_version_is_an_error(monkeypatch: pytest.MonkeyPatch, there: str | None) -> None:
    """A different version raises `VersionMismatch`, which names the package and both versions, before the
    function is unpickled."""
    here = metadata.version("inbox-outbox")
    sent = packed(shipped(pytest.fail, "ran"))
    pretend(monkeypatch, there)
    with pytest.raises(VersionMismatch, match="inbox-outbox") as caught:
        list(pickle.loads(sent)([]))  # noqa: S301 - the test's own
    assert here in str(caught.value)
    assert (there or "none") in str(caught.value)


@pytest.fixture
def executor(tmp_path: Path) -> Path:
    """A folder of packages that contains Spark, but not this package."""
    for package in ("pyspark", "py4j"):
        found = find_spec(package)
        assert found is not None
        (tmp_path / package).symlink_to(Path(found.origin or "").parent)
    return tmp_path


def run_on(executor: Path) -> str:
    """The output of a Python that can import only this folder and receives a function."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", EXECUTOR, str(executor)],
        input=packed(shipped(doubled, 3)),
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().strip()


def test_an_executor_without_the_package(executor: Path) -> None:
    """If the package cannot be imported at all, the error still says so and names the required version."""
    said = run_on(executor)
    assert said.startswith("RuntimeError: the driver runs inbox-outbox")
    assert f"inbox-outbox {metadata.version('inbox-outbox')}" in said
    assert "none" in said


def test_an_executor_with_an_older_package(executor: Path) -> None:
    """If another version is installed, whatever its content, the error names both versions."""
    installed = executor / "inbox_outbox-0.0.1.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.4\nName: inbox-outbox\nVersion: 0.0.1\n")
    said = run_on(executor)
    assert f"inbox-outbox {metadata.version('inbox-outbox')}" in said
    assert "0.0.1" in said


@pytest.mark.parametrize("there", ["99.1", None])
def test_the_data_source_checks_it_too(
    postgres: Database, monkeypatch: pytest.MonkeyPatch, there: str | None
) -> None:
    """The writers of `format("inbox")` check the version in the same way, for a batch and for a stream."""
    execute(postgres.engine(), "CREATE TABLE result (id text)")
    here, url = metadata.version("inbox-outbox"), postgres.url.render_as_string(hide_password=False)
    source = InboxDataSource({"url": url, "dbtable": "result", "key": "id", "consumer": "c"})
    sent = [packed(ask(ROWS, False)) for ask in (source.writer, source.streamWriter)]
    pretend(monkeypatch, there)
    for each in sent:
        with pytest.raises(VersionMismatch, match=here):
            pickle.loads(each).write(iter(()))  # noqa: S301 - the test's own


def test_a_stream_on_spark_4_0(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark 4.0 cannot stream Arrow batches, so `writeStream.format("inbox")` raises an error that says what
    to use instead."""
    monkeypatch.setattr("spark._driver.source.DataSourceStreamArrowWriter", None)
    with pytest.raises(InvalidOption, match=r"needs Spark 4\.1; use foreachBatch"):
        InboxDataSource({}).streamWriter(ROWS, overwrite=False)
