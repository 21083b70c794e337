"""Workers and servers crash, and the message they were handling takes effect once."""

import signal
import threading
from itertools import product

import pytest
from sqlalchemy import Connection, create_engine, event
from sqlalchemy.engine.interfaces import ExceptionContext

from examples.embedded_postgres import EmbeddedPostgres
from inbox import Inbox, Outcome, Verdict
from tests.support import accounts, crash_worker
from tests.support.database import Database
from tests.support.forked import run_forked
from tests.support.on_servers import each_on
from tests.support.together import Broker, Task

pytestmark = pytest.mark.mysql


@each_on(
    "sqlite",
    "source,point",
    product(["engine", "session"], ["after accept", "before commit", "after commit"]),
    [("engine", "before commit")],
)
def test_a_killed_worker_leaves_all_or_nothing(migrated: Database, source: str, point: str) -> None:
    """A worker is killed with kill -9 while it handles a message; on redelivery the message takes effect only
    if the first run had not committed, so the total is exact either way."""
    engine = accounts.make(migrated.engine())
    code, printed, errors = run_worker(migrated, source, point)
    assert (code, printed) == (-signal.SIGKILL, ""), errors
    committed = point == "after commit"
    assert accounts.total(engine) == (1 if committed else 0)

    inbox = Inbox("bookkeeping", wait=30)  # the server may take a moment to see that the worker is gone
    with inbox.transaction(engine, "transfer-1") as work:
        assert work.verdict is (Verdict.DUPLICATE if committed else Verdict.NEW)
        if work.is_new:
            accounts.add(work.connection)
    assert accounts.total(engine) == 1


def test_a_worker_that_lives_acknowledges(sqlite: Database) -> None:
    """The same worker, when it is not killed, takes effect once and acknowledges, so the other test really
    shows the effect of the kill."""
    engine = accounts.make(sqlite.engine())
    for _ in range(2):
        code, printed, errors = run_worker(sqlite, "engine", "never")
        assert (code, printed) == (0, "ack\n"), errors
    assert accounts.total(engine) == 1


def run_worker(database: Database, source: str, point: str) -> tuple[int, str, str]:
    """Run a worker process until it exits or is killed, and return its exit code and output."""
    url = database.url.render_as_string(hide_password=False)
    return run_forked(crash_worker.main, ["crash_worker", url, source, point, "transfer-1"])


def test_a_restarted_server_costs_no_message(private_postgres: EmbeddedPostgres) -> None:
    """PostgreSQL crashes and restarts while 8 workers handle messages: they go on with the same engine, and
    every message takes effect once."""
    messages, copies, crash_at = 400, 2, 150
    engine = accounts.make(create_engine(private_postgres.url, pool_size=8))
    progress = threading.Semaphore(0)
    broken: list[BaseException] = []

    @event.listens_for(engine, "handle_error")
    def note(context: ExceptionContext) -> None:
        if context.is_disconnect:
            broken.append(context.original_exception)

    @Inbox("bookkeeping").handler(engine, key=lambda number: f"transfer-{number}")
    def book(connection: Connection, number: int) -> None:
        accounts.add(connection, amount=number)

    def deliver(number: int) -> Outcome:
        outcome = book(number)
        progress.release()
        return outcome

    broker = Broker(number for number in range(messages) for _ in range(copies))
    delivering = Task(lambda: broker.deliver(deliver, workers=8))
    for _ in range(crash_at):
        assert progress.acquire(timeout=60)
    private_postgres.restart()
    delivering.result(timeout=120)
    total = accounts.total(engine)
    engine.dispose()
    assert broken, "the crash was not noticed: it came when all was done"
    assert total == sum(range(messages))
    assert broker.verdicts.total() >= messages * copies
