"""Shared by the Spark examples: a small local Spark that writes its output to a file."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OLDEST_JAVA = 17
FRUGAL = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData"
"""JVM options for a faster start, which takes most of an example's time."""

ROOT = Path(__file__).parents[1]
QUIET_FILE = "log4j2.properties"
QUIET = """
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
"""


def missing() -> str | None:
    """What Spark needs and this machine lacks; None if nothing."""
    if find_spec("pyspark") is None:
        return "PySpark is not installed"
    home = os.environ.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else shutil.which("java")
    if java is None:
        return f"Java {OLDEST_JAVA} or newer is not installed (no java on the PATH, and JAVA_HOME is not set)"
    try:
        asked = [java, "-XshowSettings:properties", "-version"]
        printed = subprocess.run(asked, capture_output=True, text=True, check=True).stderr
    except (OSError, subprocess.CalledProcessError):
        return f"{java} does not run"
    version = printed.partition("java.specification.version =")[2].split()[0]
    if int(version.partition(".")[0]) < OLDEST_JAVA:
        return f"{java} is version {version}, and Spark needs {OLDEST_JAVA} or newer"
    return None


@contextmanager
def spark_session(
    master: str = "local[2]", settings: Mapping[str, str] | None = None
) -> Iterator["SparkSession"]:
    """A Spark session; after the block its processes are ended and its files removed.

    Raises:
        RuntimeError: something is missing, or Spark does not start.
    """
    if reason := missing():
        raise RuntimeError(reason)
    from pyspark.sql import SparkSession

    with tempfile.TemporaryDirectory(prefix="spark-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        _prepare(folder)
        logging = f"-Dlog4j2.configurationFile={folder / QUIET_FILE}"
        options = f"{FRUGAL} -Djava.io.tmpdir={folder / 'temporary'} {logging}"
        usual = {
            "spark.driver.memory": "1g",
            "spark.driver.extraJavaOptions": options,
            "spark.executor.extraJavaOptions": options,
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
        }
        builder = SparkSession.builder.master(master).config(map={**usual, **(settings or {})})
        session = _started(builder, folder)
        try:
            yield session
        except Exception:
            session.stop()  # the JVM stays: Spark's exceptions ask it for their text when they are printed
            raise
        except BaseException:
            _end(session)
            raise
        _end(session)


def _started(builder: "SparkSession.Builder", folder: Path) -> "SparkSession":
    from pyspark.errors import PySparkException

    interrupt = signal.getsignal(signal.SIGINT)
    try:
        with _stderr_in(folder / "log"):
            return builder.getOrCreate()
    except PySparkException as error:
        last_lines = (folder / "log").read_text(errors="replace").splitlines()[-15:]
        raise RuntimeError("\n".join([f"Spark does not start: {error}", *last_lines])) from error
    except BaseException:
        for pid in processes(str(folder)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        raise
    finally:
        signal.signal(signal.SIGINT, interrupt)  # Spark's own handler would not end the program at Ctrl-C


def _prepare(folder: Path) -> None:
    """A home of links for Spark, since it writes there and the real one is in the installed packages."""
    import pyspark

    for each in ("home", "temporary"):
        (folder / each).mkdir()
    for part in Path(pyspark.__file__).parent.iterdir():
        (folder / "home" / part.name).symlink_to(part)
    (folder / QUIET_FILE).write_text(QUIET)
    os.environ |= {
        "SPARK_HOME": str(folder / "home"),
        "SPARK_CONF_DIR": str(folder / "none"),  # nothing of the machine's own configuration
        "SPARK_LOCAL_DIRS": str(folder / "local"),
        "SPARK_LOCAL_IP": "127.0.0.1",
        # Executors use the same Python and the same packages as this program.
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
    }


@contextmanager
def _stderr_in(file: Path) -> Iterator[None]:
    """Processes started in the block write their errors to a file, as long as they run."""
    before = os.dup(2)
    with file.open("wb") as log:
        os.dup2(log.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)


def _end(session: "SparkSession") -> None:
    """Stop Spark, and wait until its JVM has ended; otherwise it would run as long as this program."""
    context: Any = type(session.sparkContext)
    gateway = context._gateway  # noqa: SLF001 - there is no other way to the process
    session.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()
    context._gateway = context._jvm = None  # noqa: SLF001 - or the next session would look for that JVM


def processes(*words: str) -> list[int]:
    """The ids of the processes whose command lines contain all these words, in ascending order."""
    command = ["ps", "-A", "-ww", "-o", "pid=,args="]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    lines = [line for line in listing.splitlines() if all(word in line for word in words)]
    return sorted(int(line.split()[0]) for line in lines)
