"""An archive of Spark's classes in the form in which Java has them in memory (class data sharing).

Most of the work of a Spark JVM at its start is to load and verify ten thousand classes. Java can write them
to an archive, which later JVMs map instead. A JVM that the archive does not fit ignores it: its Java or its
jars differ, or there are files in Spark's configuration folder.
"""

import fcntl
import os
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path

import pyspark

from tests.support.program import ROOT

PROGRAM = """
import sys
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
session = builder.config("spark.driver.extraJavaOptions", sys.argv[1]).getOrCreate()
rows = session.range(10).repartition(2).groupBy("id").count()
rows.mapInArrow(lambda batches: batches, rows.schema).collect()
session.stop()
"""


def share(java_options: str) -> None:
    """Let the JVMs of every Spark that is started from now on use the archive, which is made if necessary
    with these options: the garbage collector is part of it."""
    # Without logging: a JVM that the archive does not fit would say so among the program's own output.
    options = f"-XX:SharedArchiveFile={_archive(java_options)} -Xlog:disable"
    settings = [f"spark.{part}.defaultJavaOptions={options}" for part in ("driver", "executor")]
    arguments = [word for setting in settings for word in ("--conf", setting)]
    os.environ["PYSPARK_SUBMIT_ARGS"] = shlex.join([*arguments, "pyspark-shell"])


@cache
def _archive(java_options: str) -> Path:
    """Make the archive; other test processes wait for the one that does."""
    archive = ROOT / ".pytest_cache" / f"spark-{pyspark.__version__}.jsa"
    archive.parent.mkdir(exist_ok=True)
    with archive.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            new = archive.with_suffix(".new")
            options = f"{java_options} -XX:ArchiveClassesAtExit={new}"
            subprocess.run([sys.executable, "-c", PROGRAM, options], check=False, capture_output=True)
            if new.exists():  # a JVM goes without an archive that cannot be made
                new.rename(archive)
    return archive


if __name__ == "__main__":
    from tests.support.spark import cluster

    if cluster.missing() is None:
        share(cluster.FRUGAL)
