"""Sessions that the server terminates, COMMITs without an answer, and a server with too few connections."""

import time
from collections.abc import Callable
from uuid import uuid4

import pytest
from sqlalchemy import URL, text

from tests.exactly_once.test_lost_commit import is_commit
from tests.support.on_servers import on
from tests.support.proxy import TcpProxy
from tests.support.spark.cluster import kill
from tests.support.spark_jobs.application import Application
from tests.support.spark_jobs.faults import Faults, Point
from tests.support.spark_jobs.payments import Target, check_report

pytest_plugins = ["tests.support.spark.fixtures"]
pytestmark = [
    on("postgresql", "mariadb"),
    pytest.mark.long(but_on="postgresql"),
]

ROWS = 2_000
ALONE = {"rows": ROWS, "partitions": 1}
"""One partition: there is no speculative copy that could be faster than the task's own next try."""
KILL_SESSION = {"postgresql": "SELECT pg_terminate_backend(:session)", "mariadb": "KILL :session"}
UNENCRYPTED = {"postgresql": {"sslmode": "disable"}, "mariadb": {"ssl_disabled": "true"}}
LIMIT = 2
POOR = {
    "postgresql": [
        "CREATE ROLE {user} LOGIN PASSWORD '{user}' CONNECTION LIMIT {limit}",
        "GRANT ALL ON ALL TABLES IN SCHEMA public TO {user}",
        "GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO {user}",
    ],
    "mariadb": [
        "CREATE USER {user} IDENTIFIED BY '{user}' WITH MAX_USER_CONNECTIONS {limit}",
        "GRANT ALL ON {database}.* TO {user}",
    ],
}
NO_MORE = {"postgresql": ["DROP OWNED BY {user}", "DROP ROLE {user}"], "mariadb": ["DROP USER {user}"]}


@pytest.fixture
def poor_url(target: Target, in_the_end: list[Callable[[], None]]) -> str:
    """The URL of a database user that is limited to two connections."""
    user = f"inbox_outbox_{uuid4().hex[:12]}"
    url: URL = target.database.url
    values = {"user": user, "limit": LIMIT, "database": url.database}
    with target.engine.begin() as connection:
        for statement in POOR[target.database.name]:
            connection.execute(text(statement.format(**values)))

    def drop() -> None:
        with target.engine.begin() as connection:
            for statement in NO_MORE[target.database.name]:
                connection.execute(text(statement.format(**values)))
        target.engine.dispose()

    in_the_end.append(drop)
    return url.set(username=user, password=user).render_as_string(hide_password=False)


@pytest.mark.parametrize("point", ["before keys", "before commit"])
def test_a_terminated_session_is_replaced_in_the_task(
    application: Application, target: Target, faults: Faults, point: Point
) -> None:
    """The server terminates a task's session inside its transaction: the task itself retries, and Spark does
    not run it again."""
    fault = faults.hold_at(point)
    job = application.submit("write", faults, url=target.url, payments=ALONE)
    [held] = faults.wait_for(fault)
    with target.engine.begin() as connection:
        connection.execute(text(KILL_SESSION[target.database.name]), {"session": held.session})
    faults.release(fault)
    report = job.result()
    target.check(range(ROWS))
    check_report(report, new=ROWS)
    assert {each.attempt for each in faults.visits()} == {0}


@pytest.mark.parametrize("ledger", ["verify", "off"])
@pytest.mark.parametrize("arrived", [True, False], ids=["arrived", "lost on the way"])
def test_a_lost_answer_to_commit_is_looked_up(
    application: Application, target: Target, faults: Faults, ledger: str, *, arrived: bool
) -> None:
    """The connection breaks during a COMMIT. Whether or not the COMMIT arrived, the rows are applied once,
    and Spark sees no failure."""
    fault = faults.hold_at("before commit")
    address = target.database.url
    with TcpProxy(str(address.host), address.port or 0) as proxy:
        url = address.set(host="127.0.0.1", port=proxy.port)
        url = url.update_query_dict(UNENCRYPTED[target.database.name])
        job = application.submit(
            "write",
            faults,
            url=url.render_as_string(hide_password=False),
            payments=ALONE,
            ledger=ledger,
        )
        faults.wait_for(fault)
        proxy.cut_on(is_commit, forward=arrived)
        faults.release(fault)
        report = job.result()
        assert proxy.was_cut.is_set()
    assert {each.attempt for each in faults.visits()} == {0}
    target.check(range(ROWS))
    check_report(report, new=ROWS)


@pytest.mark.long
def test_a_budget_bounds_the_transactions_of_all_tasks(
    application: Application, target: Target, faults: Faults
) -> None:
    """With max_connections=1 the other tasks wait while one task is in its transaction. When that task is
    killed, another takes its place."""
    fault = faults.hold_at("before commit")
    job = application.submit(
        "write", faults, url=target.url, payments={"rows": ROWS, "partitions": 4}, max_connections=1
    )
    [held] = faults.wait_for(fault)
    time.sleep(1)
    assert {each.pid for each in faults.visits() if each.at > held.at - 0.01} == {held.pid}
    kill(held.pid)
    report = job.result()
    target.check(range(ROWS))
    check_report(report, new=ROWS)


@pytest.mark.long
@pytest.mark.parametrize("budget", [LIMIT, None])
def test_too_few_connections_are_waited_for(
    application: Application, target: Target, poor_url: str, budget: int | None
) -> None:
    """The server allows fewer connections than there are concurrent tasks. The job succeeds, with
    `max_connections` set accordingly and without it."""
    payments = {"rows": ROWS, "partitions": 8}
    report = application.run("write", url=poor_url, payments=payments, max_connections=budget)
    target.check(range(ROWS))
    check_report(report, new=ROWS)
