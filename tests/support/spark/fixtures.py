"""Fixtures of the Spark tests: one cluster and two applications for all of them.

A test module names this one as its plugin. Starting an application takes seconds, so tests share them; two
of them see each other's work only through the database.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.servers import Server
from tests.support.database import Database, make_tables
from tests.support.present import present
from tests.support.spark_jobs.application import Application
from tests.support.spark_jobs.faults import Faults
from tests.support.spark_jobs.payments import Target

from . import classes as spark_classes
from . import cluster as spark_cluster
from .cluster import SparkCluster


@pytest.fixture(scope="session")
def cluster() -> Iterator[SparkCluster]:
    """A master and two workers; without Java the test is skipped, or fails where Spark is required."""
    present("spark", spark_cluster.missing())
    spark_classes.share(spark_cluster.FRUGAL)
    with SparkCluster() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def application(cluster: SparkCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Application]:
    """A Spark application with two executors."""
    yield from _application(cluster, tmp_path_factory.mktemp("application"))


@pytest.fixture(scope="session")
def other_application(
    cluster: SparkCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Application]:
    """A second application on the same cluster."""
    yield from _application(cluster, tmp_path_factory.mktemp("other"))


def _application(cluster: SparkCluster, folder: Path) -> Iterator[Application]:
    application = Application(cluster, folder)
    yield application
    application.close()


@pytest.fixture
def faults(application: Application) -> Iterator[Faults]:
    """The faults of one job. When the test is over, attempts that are still held go on: the executor's thread
    that waits for such an attempt was interrupted, and would stay busy."""
    yield application.faults()
    application.release()


@pytest.fixture(scope="session")
def in_the_end() -> Iterator[list[Callable[[], None]]]:
    """Functions to call after all jobs. An attempt that Spark has given up may begin to write when its
    test is over; without its database or its role it would try to connect for minutes, and keep its
    executor busy."""
    calls: list[Callable[[], None]] = []
    yield calls
    for call in calls:
        call()


@pytest.fixture
def target(
    request: pytest.FixtureRequest, server: Server, in_the_end: list[Callable[[], None]]
) -> Iterator[Target]:
    """The table that jobs write to, beside the inbox's tables, in a database that is not used again. Its
    parameter, if it has one, is the writer's option `inbox`."""
    database = Database(server, server.fresh_database())
    make_tables(database.url)
    yield Target(database, getattr(request, "param", "rows"))
    database.dispose()
    in_the_end.append(database.close)
