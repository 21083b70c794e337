"""Spark with executors in separate processes, so that one can be killed."""

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TypeVar

from examples._spark import processes, spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
EXECUTORS = 2
SETTINGS = {
    "spark.executor.memory": "512m",
    # One killed executor is enough for a job to fail. By default a task has to fail four times.
    "spark.task.maxFailures": "1",
    # No task starts before all executors are there.
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    # Each of the demo's files is a partition.
    "spark.sql.files.maxPartitionBytes": "4m",
}


class JobFailed(RuntimeError):
    """Spark has given up a job; the message is Spark's."""


class Cluster:
    """A driver, which is this program and a JVM, and executors, which are JVMs with one core each.

    All jobs run in one thread, because from other threads Spark does not find the fetched classes.
    """

    def __init__(self, session: "SparkSession", thread: ThreadPoolExecutor) -> None:
        self.session = session
        self._thread = thread
        self._name = session.sparkContext.applicationId

    def fetch(self, package: str) -> bool:
        """Add a Java package for later jobs, if it can be fetched; return whether it could."""
        try:
            self.run(lambda: self.session.sql(f"ADD JAR ivy://{package}"))
        except JobFailed:
            return False
        return True

    def run(self, job: Callable[[], T], meanwhile: Callable[[], object] = lambda: None) -> T:
        """Run a job, and call `meanwhile` repeatedly until it has ended.

        Raises:
            JobFailed: Spark has given up the job.
        """
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]
        from pyspark.errors import PySparkException

        running = self._thread.submit(job)
        try:
            while not wait([running], timeout=0.05).done:
                meanwhile()
        except BaseException:
            self.session.sparkContext.cancelAllJobs()
            raise
        try:
            return running.result()
        except (PySparkException, Py4JError) as error:
            raise JobFailed(str(error)) from error

    def kill_executor(self) -> int:
        """Kill the oldest executor with kill -9; return how many were killed: 0 while a new one starts."""
        executors = processes("ExecutorBackend", self._name)
        for pid in executors[:1]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return len(executors[:1])


@contextmanager
def cluster() -> Iterator[Cluster]:
    """A cluster that runs as long as the block."""
    with (
        spark_session(f"local-cluster[{EXECUTORS},1,512]", SETTINGS) as session,
        ThreadPoolExecutor(1) as thread,
    ):
        yield Cluster(session, thread)
