"""A Spark inside this process, for tests of how Spark itself treats its types and options.

A test module names this one as its plugin. It is small and local; all tests of a run share it.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.present import present

from . import classes as spark_classes
from . import cluster as spark_cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHECKOUT = Path(__file__).parents[3]
SETTINGS = {
    "spark.driver.memory": "1g",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.extraJavaOptions": spark_cluster.JAVA_OPTIONS,
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


@pytest.fixture(scope="session")
def spark_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator["SparkSession"]:
    """A local Spark with two threads; without Java the test is skipped, or fails if Spark is required."""
    present("spark", spark_cluster.missing())
    spark_classes.share(spark_cluster.FRUGAL)
    with pytest.MonkeyPatch.context() as patch:  # Spark's Python workers have it from the JVM
        paths = [str(CHECKOUT), *filter(None, [os.environ.get("PYTHONPATH")])]
        patch.setenv("PYTHONPATH", os.pathsep.join(paths))
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        session = _started(tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()


def _started(folder: Path) -> "SparkSession":
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").appName("tests")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    builder = builder.config("spark.sql.warehouse.dir", str(folder / "warehouse"))
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session
