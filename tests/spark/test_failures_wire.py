"""Connections that break at any point of a partition's transaction, and servers that are unavailable for a
while."""

from collections.abc import Iterator

import pytest
from sqlalchemy import make_url

from examples.embedded_postgres import EmbeddedPostgres
from inbox.schema import tables
from tests.servers import Server
from tests.spark.test_failures_connections import UNENCRYPTED
from tests.support.database import Database
from tests.support.on_servers import on
from tests.support.proxy import TcpProxy
from tests.support.spark.writes import attempt, batch, make_result, prepared, taken, written
from tests.support.spark_jobs.application import Application
from tests.support.spark_jobs.faults import Faults
from tests.support.spark_jobs.payments import Target, check_report

pytest_plugins = ["tests.support.spark.fixtures"]

ROWS, SHARED = 10, 4


class Countdown:
    """Matches the n-th chunk that a client sends."""

    def __init__(self, count: int) -> None:
        self.left = count

    def __call__(self, chunk: bytes) -> bool:
        self.left -= 1
        return self.left == 0


@pytest.mark.parametrize(
    ("server", "ledger", "arrived"),
    [
        ("postgresql", "verify", True),
        pytest.param("mariadb", "off", True, marks=pytest.mark.long),
        pytest.param("postgresql", "off", False, marks=pytest.mark.long),
        pytest.param("mariadb", "verify", False, marks=pytest.mark.long),
        pytest.param("postgresql", "verify", False, marks=pytest.mark.long),
        pytest.param("postgresql", "off", True, marks=pytest.mark.long),
        pytest.param("mariadb", "verify", True, marks=pytest.mark.long),
        pytest.param("mariadb", "off", False, marks=pytest.mark.long),
    ],
    indirect=["server"],
    scope="session",
)
def test_a_connection_may_break_anywhere(migrated: Database, ledger: str, arrived: bool) -> None:
    """The connection breaks at each message that a task sends to the server, from its greeting to its COMMIT,
    whether or not that message arrives. The task's next try ends with the same rows, keys and counts."""
    engine = make_result(migrated)
    address = make_url(migrated.url)
    # The first keys of each attempt are the last keys of the previous one.
    attempt(prepared(migrated), 0, batch(*((f"k{number:04d}", number) for number in range(SHARED))))
    first, point, countdown = 0, 0, Countdown(0)
    with TcpProxy(str(address.host), address.port or 0) as proxy:
        url = address.set(host="127.0.0.1", port=proxy.port).update_query_dict(UNENCRYPTED[migrated.name])
        while countdown.left <= 0:
            point += 1
            countdown = Countdown(point)
            task = prepared(migrated, url=url, ledger=ledger)
            rows = [(f"k{number:04d}", number) for number in range(first, first + SHARED + ROWS)]
            proxy.cut_on(countdown, forward=arrived)
            done = attempt(task, 0, batch(*rows))
            assert done is not None
            assert (done.counts.new, done.counts.duplicate) == (ROWS, SHARED), f"chunk {point}"
            first += ROWS
    expected = [(f"k{number:04d}", number) for number in range(first + SHARED)]
    assert written(engine) == expected
    assert taken(engine) == [key for key, _ in expected]
    assert point > 10, "there was nothing to cut"
    entries = tables().ledger.select()
    with engine.connect() as connection:
        assert len(connection.execute(entries).all()) == (1 if ledger == "off" else point + 1)


@pytest.fixture
def private_target(server: Server, private_postgres: EmbeddedPostgres) -> Iterator[Target]:
    """A table of payments on a server that the test may crash."""
    target = Target(Database(server, private_postgres.url))
    yield target
    target.engine.dispose()


@on("postgresql")
def test_a_restarted_server_is_not_seen_by_spark(
    application: Application, private_target: Target, private_postgres: EmbeddedPostgres, faults: Faults
) -> None:
    """The server crashes while tasks are about to commit, and comes back: the tasks themselves retry, and the
    job succeeds."""
    payments = {"rows": 2_000, "partitions": 2}
    fault = faults.hold_at("before commit", times=2)
    job = application.submit("write", faults, url=private_target.url, payments=payments)
    faults.wait_for(fault, count=2)
    private_postgres.restart()
    faults.release(fault)
    report = job.result()
    private_target.engine.dispose()
    private_target.check(range(2_000))
    check_report(report, new=2_000)
