"""Different versions on driver and executors: a clear error, before anything is sent to the database."""

import pickle
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from pyspark import cloudpickle
from pyspark.sql.types import StringType, StructField, StructType

from inbox.errors import InvalidOption
from inbox_outbox_base.version import __version__
from spark import InboxDataSource
from spark._driver.send_code import shipped
from spark.errors import VersionMismatch
from tests.support.database import Database
from tests.support.program import ROOT
from tests.support.spark.writes import execute

ROWS = StructType([StructField("id", StringType(), nullable=False)])
VERSION = "inbox_outbox_base.version"
PACKAGES = ("inbox", "inbox_outbox_base", "outbox", "spark")
MIGRATE = """
import sys
sys.path.extend(sys.argv[1:])
from inbox import migration
try:
    migration.script("sqlite")
except FileNotFoundError as error:
    print(error)
"""
EXECUTOR = """
import pickle, sys
sys.path.extend(sys.argv[1:])
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
    """Pretend that the package is there in this version, or not at all."""
    if version is None:
        monkeypatch.setitem(sys.modules, VERSION, None)
    else:
        monkeypatch.setattr(f"{VERSION}.__version__", version)


def test_the_same_version_runs() -> None:
    """With equal versions, the function arrives with its arguments."""
    sent = packed(shipped(doubled, 3))
    assert list(pickle.loads(sent)([1, 2])) == [3, 6]  # noqa: S301 - the test's own


@pytest.mark.parametrize("there", ["99.1", None])
def test_another_version_is_an_error(monkeypatch: pytest.MonkeyPatch, there: str | None) -> None:
    """A different version raises `VersionMismatch`, which names the package and both versions, before the
    function is unpickled."""
    sent = packed(shipped(pytest.fail, "ran"))
    pretend(monkeypatch, there)
    with pytest.raises(VersionMismatch, match="inbox-outbox") as caught:
        list(pickle.loads(sent)([]))  # noqa: S301 - the test's own
    assert __version__ in str(caught.value)
    assert (there or "none") in str(caught.value)


@pytest.fixture
def executor(tmp_path: Path) -> Path:
    """A folder of packages that contains Spark, but not this package."""
    for package in ("pyspark", "py4j"):
        found = find_spec(package)
        assert found is not None
        (tmp_path / package).symlink_to(Path(found.origin or "").parent)
    return tmp_path


def run_on(*paths: Path, program: str = EXECUTOR, sent: object = None) -> str:
    """The output of a Python that can import only what is in these places and receives a function."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program, *map(str, paths)],
        input=packed(sent or shipped(doubled, 3)),
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
    assert f"inbox-outbox {__version__}" in said
    assert "none" in said


def test_an_executor_with_an_older_package(executor: Path) -> None:
    """If another version is there, whatever its content, the error names both versions."""
    there = executor / "inbox_outbox_base"
    there.mkdir()
    (there / "__init__.py").touch()
    (there / "version.py").write_text('__version__ = "0.0.1"\n')
    said = run_on(executor)
    assert f"inbox-outbox {__version__}" in said
    assert "0.0.1" in said


def test_an_executor_with_a_zip_of_the_package(executor: Path) -> None:
    """A zip of the sources, as for `--py-files`, is enough where the dependencies are installed. Only the
    migrations need files, and the error says so."""
    archive = executor / "sources.zip"
    with zipfile.ZipFile(archive, "w") as sources:
        for file in (each for package in PACKAGES for each in (ROOT / package).rglob("*.py")):
            sources.write(file, file.relative_to(ROOT))
    # Everything that is installed, except this package and what is known of it.
    for each in Path(sysconfig.get_path("purelib")).iterdir():
        if not each.name.startswith(("inbox", "outbox", "spark")) and not (executor / each.name).exists():
            (executor / each.name).symlink_to(each)
    assert run_on(archive, executor, sent=shipped(map, str)) == "['1', '2']"
    said = run_on(archive, executor, program=MIGRATE)
    assert str(archive) in said
    assert "not from an archive" in said


@pytest.mark.parametrize("there", ["99.1", None])
def test_the_data_source_checks_it_too(
    postgres: Database, monkeypatch: pytest.MonkeyPatch, there: str | None
) -> None:
    """The writers of `format("inbox")` check the version in the same way, for a batch and for a stream."""
    execute(postgres.engine(), "CREATE TABLE result (id text)")
    url = postgres.url.render_as_string(hide_password=False)
    source = InboxDataSource({"url": url, "dbtable": "result", "key": "id", "consumer": "c"})
    sent = [packed(ask(ROWS, False)) for ask in (source.writer, source.streamWriter)]
    pretend(monkeypatch, there)
    for each in sent:
        with pytest.raises(VersionMismatch, match=__version__):
            pickle.loads(each).write(iter(()))  # noqa: S301 - the test's own


def test_a_stream_on_spark_4_0(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark 4.0 cannot stream Arrow batches, so `writeStream.format("inbox")` raises an error that says what
    to use instead."""
    monkeypatch.setattr("spark._driver.source.DataSourceStreamArrowWriter", None)
    with pytest.raises(InvalidOption, match=r"needs Spark 4\.1; use foreachBatch"):
        InboxDataSource({}).streamWriter(ROWS, overwrite=False)
