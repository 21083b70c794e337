"""Streams that are killed, that repeat a batch, and that lose their checkpoint."""

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.support.on_servers import on
from tests.support.spark.cluster import SparkCluster, kill
from tests.support.spark_jobs.application import Application, Job
from tests.support.spark_jobs.faults import Faults, Point
from tests.support.spark_jobs.payments import Target, write_file

pytest_plugins = ["tests.support.spark.fixtures"]
pytestmark = [
    on("postgresql", "mariadb"),
    pytest.mark.long(but_on="postgresql"),
]
sinks = pytest.mark.parametrize("sink", ["foreach_batch", "inbox"])


class Stream:
    """A folder of files, a checkpoint, and a sink. Two files make a batch of two partitions."""

    def __init__(self, target: Target, folder: Path, sink: str, **more: str) -> None:
        self.files, self.checkpoint = folder / "files", folder / "checkpoint"
        self.files.mkdir()
        self._count = 0
        where: dict[str, Any] = {"files": str(self.files), "checkpoint": str(self.checkpoint)}
        if sink == "foreach_batch":
            self._job, self._arguments = "stream_batches", {"url": target.url, **where, **more}
        else:
            self._job, self._arguments = "stream_source", {"options": {**target.options, **more}, **where}

    def add(self, *files: Iterable[int]) -> None:
        """New files, with these payments."""
        for payments in files:
            self._count += 1
            write_file(self.files, self._count, payments)

    def submit(self, application: Application, faults: Faults | None = None) -> Job:
        """Start a job that processes the new files."""
        return application.submit(self._job, faults, **self._arguments)

    def run(self, application: Application) -> list[int]:
        """Process the new files to the end. Returns the numbers of the batches."""
        batches: list[int] = self.submit(application).result()
        return batches

    def forget_commit(self, batch: int) -> None:
        """Delete the checkpoint's record that a batch has finished."""
        commits = self.checkpoint / "commits"
        (commits / str(batch)).unlink()
        (commits / f".{batch}.crc").unlink(missing_ok=True)


@pytest.fixture
def stream_to(target: Target, tmp_path: Path) -> Callable[[str], Stream]:
    """Makes a new stream into the target, given its sink."""
    return lambda sink: Stream(target, tmp_path, sink)


@pytest.mark.long(but_on="foreach_batch")
@sinks
def test_a_batch_that_comes_again_is_applied_once(
    application: Application, target: Target, stream_to: Callable[[str], Stream], sink: str
) -> None:
    """The last commit file of the checkpoint is deleted: the stream repeats its last batch, and continues
    with the new files."""
    stream = stream_to(sink)
    stream.add(range(100), range(50, 150), range(150, 250), range(250, 300))
    assert stream.run(application) == [0, 1]
    target.check(range(300))
    assert target.counted() == (350, 300)

    stream.forget_commit(1)
    stream.add(range(290, 400), range(400, 500))
    assert stream.run(application) == [1, 2]
    target.check(range(500))
    assert target.counted() == (560, 500)


@pytest.mark.parametrize(
    ("sink", "ledger"),
    [
        ("foreach_batch", "verify"),
        pytest.param("inbox", "trust", marks=pytest.mark.long),
        pytest.param("foreach_batch", "trust", marks=pytest.mark.long),
        pytest.param("inbox", "verify", marks=pytest.mark.long),
    ],
)
def test_a_stream_without_its_checkpoint_skips_nothing(
    application: Application, target: Target, tmp_path: Path, sink: str, ledger: str
) -> None:
    """The whole checkpoint is deleted, and the old batch numbers get other files, with as many rows in as
    many partitions. All new rows are applied, and none twice."""
    run = "run" if sink == "foreach_batch" else "txnAppId"
    stream = Stream(target, tmp_path, sink, **{run: "payments", "ledger": ledger})
    stream.add(range(100), range(100, 200), range(200, 300), range(300, 400))
    assert stream.run(application) == [0, 1]
    target.check(range(400))

    shutil.rmtree(stream.checkpoint)
    for file in sorted(stream.files.glob("*.json"))[:3]:
        file.unlink()
    stream.add(range(390, 490), range(490, 590), range(590, 690))
    assert stream.run(application) == [0, 1]
    target.check(range(690))
    assert target.counted()[1] == 690


@pytest.mark.parametrize(
    ("sink", "point"),
    [
        ("foreach_batch", "before commit"),
        ("inbox", "after commit"),
        pytest.param("foreach_batch", "after commit", marks=pytest.mark.long),
        pytest.param("inbox", "before commit", marks=pytest.mark.long),
    ],
)
def test_a_killed_worker_of_a_stream_costs_nothing(
    application: Application,
    target: Target,
    stream_to: Callable[[str], Stream],
    faults: Faults,
    sink: str,
    point: Point,
) -> None:
    """A Python worker is killed in the middle of a batch: the stream finishes, and each payment is applied
    once."""
    stream = stream_to(sink)
    stream.add(range(100), range(50, 150), (), ())
    fault = faults.hold_at(point)
    job = stream.submit(application, faults)
    kill(faults.wait_for(fault)[0].pid)
    assert job.result() == [0, 1]
    target.check(range(150))
    assert target.counted() == (200, 150)


@pytest.mark.long
def test_a_killed_driver_is_replaced(
    application: Application,
    cluster: SparkCluster,
    target: Target,
    stream_to: Callable[[str], Stream],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """The driver is killed with kill -9 when one of two partitions has committed. Another application
    continues from the checkpoint, and applies the rest."""
    victim = Application(cluster, tmp_path_factory.mktemp("victim"))
    try:
        stream = stream_to("foreach_batch" if target.database.name == "postgresql" else "inbox")
        stream.add(range(100), range(100, 200), range(200, 300), range(300, 400))
        faults = victim.faults()
        fault = faults.hold_at("after commit", partition=1, times=2)
        stream.submit(victim, faults)
        faults.wait_for(fault)
    finally:
        victim.kill()
    assert stream.run(application) == [0, 1]
    target.check(range(400))
    assert target.counted() == (400, 400)
