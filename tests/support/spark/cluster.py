"""A Spark standalone cluster on this machine: a master and two workers, each in its own process.

Everything comes from PySpark's wheel and from the installed Java. The workers use two names of this machine,
because Spark starts no speculative copy on a host where an attempt is already running.
"""

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Self

from examples.embedded_postgres import ServerProcess, free_port, private_folder
from tests.servers import Missing

MASTER_HOST = "127.0.0.1"
WORKER_HOSTS = ("127.0.0.1", "localhost")
WORKER_CORES = 9  # logical ones: executors of three applications
WORKER_MEMORY = "4g"
OLDEST_JAVA = 17
# They run beside tests on few cores. With -Xrs a SIGQUIT ends them, which is what the guard of a
# `ServerProcess` sends; without it they would only print their threads.
FRUGAL = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
JAVA_OPTIONS = f"-Xrs {FRUGAL}"
LOGGING = """
rootLogger.level = error
rootLogger.appenderRef.stdout.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
"""


@dataclass(frozen=True, slots=True)
class Process:
    """A running process, as the system lists it."""

    pid: int
    parent: int
    command: str

    @property
    def is_executor(self) -> bool:
        """Whether it is an executor's JVM."""
        return "CoarseGrainedExecutorBackend" in self.command

    def kill(self) -> None:
        """kill -9, if it has not ended by itself."""
        kill(self.pid)


class SparkCluster:
    """A master and two workers on 127.0.0.1, stopped and removed at the end of the ``with`` block.

    Raises RuntimeError, with the daemon's output, if one cannot start.
    """

    def __init__(self) -> None:
        self.folder = private_folder("spark-", None)
        (self.folder / "log4j2.properties").write_text(LOGGING)
        self._daemons: list[ServerProcess] = []
        port, page = free_port(), free_port()
        self.url = f"spark://{MASTER_HOST}:{port}"
        self._state_url = f"http://{MASTER_HOST}:{page}/json/"
        addresses = ["--host", MASTER_HOST, "--port", str(port), "--webui-port", str(page)]
        try:
            self._start("deploy.master.Master", addresses, lambda: self._workers() == 0)
            for number, host in enumerate(WORKER_HOSTS, start=1):
                self._start_worker(number, host)
        except BaseException:
            self.close()
            raise

    @property
    def logging(self) -> str:
        """The JVM option that configures logging for the cluster and the programs that use it."""
        return f"-Dlog4j2.configurationFile={self.folder / 'log4j2.properties'}"

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment that the cluster and the programs that use it need."""
        return {
            "SPARK_HOME": str(home()),
            "SPARK_CONF_DIR": str(self.folder / "none"),  # see `spark_classes`
            "SPARK_LOCAL_IP": MASTER_HOST,
            "SPARK_LOCAL_DIRS": str(self.folder / "local"),
            "SPARK_DAEMON_MEMORY": "256m",
            # The folder is there to tell the cluster's processes from others by.
            "SPARK_DAEMON_JAVA_OPTS": f"{JAVA_OPTIONS} {self.logging} -Dtests.folder={self.folder}",
        }

    def executors(self, application: str) -> list[Process]:
        """The executor JVMs of an application, by its id."""
        return [each for each in processes() if each.is_executor and application in each.command]

    def close(self) -> None:
        """Stop all processes, and remove all files. Closing again does nothing."""
        started = [each for each in processes() if str(self.folder) in each.command]
        left = [each for root in started for each in descendants(root.pid)]
        while self._daemons:
            self._daemons.pop().stop(signal.SIGTERM)
        for process in left:
            process.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start_worker(self, number: int, host: str) -> None:
        folder = self.folder / f"worker-{number}"
        options = ["--host", host, "--webui-port", str(free_port()), "--work-dir", str(folder)]
        size = ["--cores", str(WORKER_CORES), "--memory", WORKER_MEMORY]
        # The last one waits for all of them.
        is_last = number == len(WORKER_HOSTS)
        self._start(
            "deploy.worker.Worker",
            [*options, *size, self.url],
            lambda: not is_last or self._workers() == number,
        )

    def _start(self, kind: str, options: Sequence[str], is_ready: Callable[[], bool]) -> None:
        variables = [f"{key}={value}" for key, value in self.environment.items()]
        program = [str(home() / "bin" / "spark-class"), f"org.apache.spark.{kind}"]
        # What the workers' Python can import comes with the job, not from here.
        command = ["env", "--unset=PYTHONPATH", *variables, *program, *options]
        self._daemons.append(ServerProcess(command, self.folder, user=None, is_ready=is_ready))

    def _workers(self) -> int | None:
        """The number of workers that the master has; None until it answers."""
        try:
            with urllib.request.urlopen(self._state_url, timeout=5) as answer:  # noqa: S310 - it is ours
                state: dict[str, Any] = json.load(answer)
        except (OSError, ValueError):
            return None
        return int(state["aliveworkers"])


def processes() -> list[Process]:
    """All running processes."""
    listing = ["ps", "-A", "-ww", "-o", "pid=,ppid=,args="]
    printed = subprocess.run(listing, capture_output=True, text=True, check=True).stdout
    return [Process(int(pid), int(parent), command) for pid, parent, command in _fields(printed)]


def descendants(pid: int) -> list[Process]:
    """The child processes of a process, and theirs."""
    return list(_below(pid, processes()))


def parents(pid: int) -> list[Process]:
    """The parent of a process, the parent's parent, and so on."""
    by_pid = {each.pid: each for each in processes()}
    chain = []
    while pid in by_pid and by_pid[pid].parent in by_pid:
        pid = by_pid[pid].parent
        chain.append(by_pid[pid])
    return chain


def is_running(pid: int) -> bool:
    """Whether the process exists and is not a zombie."""
    return any(each.pid == pid and "<defunct>" not in each.command for each in processes())


def kill(pid: int) -> None:
    """kill -9, if the process has not ended by itself."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def missing() -> Missing | None:
    """The reason why no cluster can run here; None if one can."""
    if importlib.util.find_spec("pyspark") is None:
        return Missing("pyspark is not installed")
    return _missing_java()


def home() -> Path:
    """Spark's folder in the wheel of PySpark."""
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


@cache
def _missing_java() -> Missing | None:
    java_home = os.environ.get("JAVA_HOME")
    java = f"{java_home}/bin/java" if java_home else shutil.which("java")
    if java is None:
        return Missing("java is not installed and JAVA_HOME is not set")
    asked = [java, "-XshowSettings:properties", "-version"]
    try:
        printed = subprocess.run(asked, capture_output=True, text=True, check=True).stderr
    except (OSError, subprocess.CalledProcessError) as error:
        return Missing(f"java does not run: {error}")
    version = printed.split("java.specification.version =")[1].split()[0]
    if int(version.split(".")[0]) < OLDEST_JAVA:
        return Missing(f"java {version} is older than {OLDEST_JAVA}")
    return None


def _fields(listing: str) -> Iterator[list[str]]:
    for line in listing.splitlines():
        fields = line.split(None, 2)
        yield [*fields, ""][:3]


def _below(pid: int, listed: Sequence[Process]) -> Iterator[Process]:
    for each in listed:
        if each.parent == pid:
            yield each
            yield from _below(each.pid, listed)
