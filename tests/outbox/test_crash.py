"""Producers and servers crash: a message is sent if and only if its business row is there."""

import random
import signal
import threading
from itertools import product

from sqlalchemy import Engine, create_engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from examples.embedded_postgres import EmbeddedPostgres
from outbox import Outbox
from tests.support import accounts, outbox_producer
from tests.support.database import Database
from tests.support.forked import run_forked
from tests.support.on_servers import spread
from tests.support.published import TOPIC, texts
from tests.support.together import Task

OUTBOX = Outbox()
SOURCES = ["connection", "session"]
KILLED = ["before commit", "after commit", "after business row", "after publish"]


@spread("point, source", product(KILLED, SOURCES), elsewhere=len(KILLED))
def test_a_killed_producer_publishes_all_or_nothing(migrated: Database, point: str, source: str) -> None:
    """A producer is killed with kill -9 during its transaction, or right after it. If its business row is
    there, all its messages are sent in order; otherwise none is."""
    engine = accounts.make(migrated.engine())
    code, printed, errors = run_producer(migrated, source, point)
    assert (code, printed) == (-signal.SIGKILL, ""), errors
    committed = point == "after commit"
    assert accounts.total(engine) == committed
    assert texts(engine) == ["1", "2", "3"] * committed
    with engine.begin() as connection:
        accounts.add(connection)  # waits until the server has noticed that the producer is gone
        OUTBOX.publish(connection, TOPIC, "4", key="k")
    assert texts(engine) == ["4"]


def run_producer(database: Database, source: str, point: str) -> tuple[int, str, str]:
    """Run a producer until it ends; return its exit code and what it printed."""
    url = database.url.render_as_string(hide_password=False)
    return run_forked(outbox_producer.main, ["outbox_producer", url, source, point])


def test_a_server_that_crashes_loses_and_invents_nothing(private_postgres: EmbeddedPostgres) -> None:
    """PostgreSQL crashes and restarts while 4 producers are running: afterwards there is a message for each
    business row, and a business row for each message."""
    engine = create_engine(private_postgres.url, pool_size=4)
    names = [f"{thread}-{number}" for thread in range(4) for number in range(100)]
    accounts.make(engine, names)
    progress, errors = threading.Semaphore(0), threading.Semaphore(0)

    def produce(thread: int) -> None:
        for number in range(100):
            try:
                tell(engine, f"{thread}-{number}")
            except DBAPIError:
                errors.release()
            progress.release()

    tasks = [Task(lambda thread=thread: produce(thread)) for thread in range(4)]  # type: ignore[misc]
    for _ in range(random.randrange(50, 250)):
        assert progress.acquire(timeout=60)
    private_postgres.restart()
    for task in tasks:
        task.result(timeout=120)
    written = {name for name, total in accounts.totals(engine).items() if total}
    said = texts(engine)
    engine.dispose()
    assert errors.acquire(blocking=False), "the crash was not noticed: it came when all was done"
    assert len(said) == len(set(said))
    assert set(said) == written
    assert written


def tell(engine: Engine, name: str) -> None:
    """Write a business row and publish a message about it."""
    with Session(engine) as session, session.begin():
        OUTBOX.publish(session, TOPIC, name, key=name)
        accounts.add(session, name)
