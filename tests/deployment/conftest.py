"""The cluster that the tests of Galera share."""

from collections.abc import Iterator

import pytest

from inbox import migration
from tests.servers import galera
from tests.support.cluster import Cluster
from tests.support.present import present


@pytest.fixture(scope="session")
def running_cluster() -> Iterator[Cluster]:
    """Three nodes with our tables, and a table of business rows."""
    cluster = Cluster(present("galera", galera.find()))
    try:
        migration.migrate(cluster.engines[0])
        cluster.run(
            "CREATE TABLE effect (id int AUTO_INCREMENT PRIMARY KEY, message varchar(40), node varchar(40))"
        )
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def cluster(running_cluster: Cluster) -> Cluster:
    """The cluster, all of whose nodes take writes, without business rows."""
    for node, engine in enumerate(running_cluster.engines):
        engine.dispose()  # the node may have been killed
        running_cluster.rows("SELECT 1", node)
    running_cluster.run("DELETE FROM effect")
    return running_cluster
