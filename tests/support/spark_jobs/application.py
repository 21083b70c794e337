"""The test's side of `tests.support.spark_jobs.driver`: a Spark application in its own process."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from tests.support.program import ROOT
from tests.support.spark.cluster import FRUGAL, Process, SparkCluster, descendants, kill, processes
from tests.support.spark_jobs.faults import Faults

SITE = Path(__file__).with_name("site")
# Speculation sets in soon, so that nearly every job has copies that race each other.
SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.executor.cores": "3",
    "spark.executor.memory": "512m",
    "spark.cores.max": "6",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "4",
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.minTaskRuntime": "200ms",
    "spark.speculation.multiplier": "2",
    "spark.speculation.quantile": "0.5",
    "spark.task.maxFailures": "4",
    # An attempt that has lost goes on, as it does when Spark cannot reach it.
    "spark.python.task.killTimeout": "120s",
}


class JobFailed(Exception):
    """The job raised an exception; `kinds` are its class and that class's bases."""

    def __init__(self, kinds: list[str], message: str) -> None:
        super().__init__(message)
        self.kinds = kinds


class Job:
    """A job that has been submitted."""

    def __init__(self, number: int, faults: Faults) -> None:
        self.number = number
        self.faults = faults
        self.answer: SimpleQueue[dict[str, Any]] = SimpleQueue()

    def result(self, timeout: float = 180) -> Any:
        """The job's return value. Raises JobFailed if it raised an exception."""
        try:
            answer = self.answer.get(timeout=timeout)
        except Empty:
            raise AssertionError(f"no answer after {timeout} s: {self.faults.visits()}") from None
        if "error" in answer:
            raise JobFailed(answer["error"], answer["message"])
        return answer["result"]


class Application:
    """A Spark application on the cluster, ended by `close`; its files are in a folder of the caller."""

    def __init__(self, cluster: SparkCluster, folder: Path) -> None:
        self._cluster = cluster
        self._folder = folder
        self._log = (folder / "log").open("w+b")
        self._jobs: dict[int, Job] = {}
        self._faults: list[Faults] = []
        self._numbers = 0
        path = os.pathsep.join([str(SITE), str(ROOT)])
        mine = {"spark.master": cluster.url, "spark.executorEnv.PYTHONPATH": path}
        warehouse = {"spark.sql.warehouse.dir": str(folder / "warehouse")}
        options = f"{FRUGAL} {cluster.logging}"
        java = {f"spark.{part}.extraJavaOptions": options for part in ("driver", "executor")}
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.support.spark_jobs.driver"),
                json.dumps({**SETTINGS, **mine, **warehouse, **java}),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            cwd=folder,
            env={
                **os.environ,
                **cluster.environment,
                "PYTHONPATH": str(ROOT),
                "PYSPARK_PYTHON": sys.executable,
                "PYSPARK_DRIVER_PYTHON": sys.executable,
            },
        )
        try:
            self.id: str = self._read()["application"]
        except BaseException:
            self.close()
            raise
        threading.Thread(target=self._distribute, daemon=True).start()

    def submit(self, name: str, faults: Faults | None = None, **arguments: Any) -> Job:
        """Start a function of `tests.support.spark_jobs.jobs` in the driver, with these faults."""
        self._numbers += 1
        if faults is None:
            faults = self.faults()
        job = self._jobs[self._numbers] = Job(self._numbers, faults)
        order = {"name": name, "number": job.number, "arguments": arguments, "faults": str(faults.folder)}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return job

    def run(self, name: str, faults: Faults | None = None, **arguments: Any) -> Any:
        """Submit that function and return its result. Raises JobFailed if it raises an exception."""
        return self.submit(name, faults, **arguments).result()

    def faults(self) -> Faults:
        """An empty list of faults, for one job or several."""
        folder = self._folder / f"faults-{len(self._faults)}"
        folder.mkdir()
        self._faults.append(Faults(folder))
        return self._faults[-1]

    def release(self) -> None:
        """Release every attempt that a fault holds or would hold."""
        for faults in self._faults:
            faults.release_all()

    def executors(self) -> list[Process]:
        """The JVMs that run this application's tasks."""
        return self._cluster.executors(self.id)

    def is_alive(self) -> bool:
        """Whether the driver is running."""
        return self._process.poll() is None

    def kill(self) -> None:
        """kill -9 of the driver and of its JVM."""
        for process in descendants(self._process.pid):
            process.kill()
        kill(self._process.pid)
        self.close()

    def close(self) -> None:
        """End the application. Closing again does nothing."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        doomed = descendants(self._process.pid)
        try:
            self._process.stdin.close()
            self._process.wait(30)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        # Workers whose executor was killed may have nobody who would end them.
        visitors = {visit.pid for faults in self._faults for visit in faults.visits()}
        doomed += [each for each in processes() if each.pid in visitors and "pyspark" in each.command]
        for process in doomed:
            process.kill()
        self._process.stdout.close()
        self._log.close()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            log = Path(self._log.name).read_text(errors="replace")
            raise RuntimeError("the driver ended:\n" + "\n".join(log.splitlines()[-30:]))
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _distribute(self) -> None:
        """Pass each answer to the caller that waits for it; when the driver ends, tell all that still
        wait."""
        try:
            while True:
                answer = self._read()
                self._jobs.pop(answer["number"]).answer.put(answer)
        except (RuntimeError, ValueError, OSError) as error:
            for job in self._jobs.values():
                job.answer.put({"error": ["DriverEnded"], "message": str(error)})
