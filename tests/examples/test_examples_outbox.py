"""The outbox examples do what their docstrings say."""

import pytest
from sqlalchemy import Engine, select

from examples.outbox_publish import TOPIC
from outbox import Outbox
from outbox.schema import tables
from tests.support.database import Database
from tests.support.forked import run_module
from tests.support.on_servers import each_on

pytestmark = pytest.mark.quick("postgresql", "sqlite")

OUTPUT = {
    "outbox_publish": [
        "order-1: committed",
        "order-2: rolled back, order-2 is sold out",
        "messages waiting: 1",
        'sent to example.orders: {"placed":"order-1"}, key order-1',
        "messages relayed: 1",
        "messages waiting: 0",
        "orders: 1, expected: 1",
    ],
    "outbox_orm_session": [
        "order-2: its savepoint is rolled back, no unobtainium",
        'sent to example.orders: {"placed":"order-1","item":"tea"}, key order-1',
        'sent to example.orders: {"placed":"order-3","item":"coffee"}, key order-3',
        "messages relayed: 2",
        "orders: 2, expected: 2",
    ],
    "outbox_direct": [
        "billing order-1: fails",
        "billing order-1: done, attempt 2",
        "shipping order-1: done, attempt 1",
        "messages relayed: 2",
        "invoices: 1, expected: 1",
        "parcels: 1, expected: 1",
    ],
    "outbox_resend": [
        "order-1: the request timed out, though it was committed",
        "order-1: repeated, and answered",
        "shipping takes order-1, message 1: new",
        "shipping takes order-1, message 2: duplicate",
        "messages relayed: 2",
        "parcels: 1, expected: 1",
    ],
}


@each_on("sqlite", "example", [(example,) for example in OUTPUT], [("outbox_publish",)])
def test_an_example_prints_what_it_shows(example: str, database: Database) -> None:
    """A message is sent if and only if its transaction commits, and takes effect once."""
    done = run_module(f"examples.{example}", url=database.url)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == OUTPUT[example]


def test_an_example_can_run_again(postgres: Database) -> None:
    """Inbox rows and messages that an earlier run has left do not change the next one."""
    publish(postgres.engine(), TOPIC)
    for _ in range(2):
        done = run_module("examples.outbox_direct", url=postgres.url)
        assert done.stdout.splitlines() == OUTPUT["outbox_direct"]


def test_an_example_brings_its_own_database() -> None:
    """Without --url an example runs on the embedded PostgreSQL."""
    done = run_module("examples.outbox_resend")
    assert done.stdout.splitlines() == OUTPUT["outbox_resend"]


def test_an_example_takes_nobody_elses_messages(postgres: Database) -> None:
    """An example does not start if the outbox contains other messages: its relay would send them, too."""
    engine = postgres.engine()
    publish(engine, "somebody.elses")
    done = run_module("examples.outbox_publish", url=postgres.url)
    assert done.returncode == 1
    assert "the outbox contains other messages" in done.stderr
    with engine.connect() as connection:
        assert connection.execute(select(tables().message.c.topic)).scalars().all() == ["somebody.elses"]


def publish(engine: Engine, topic: str) -> None:
    """Commit a message."""
    with engine.begin() as connection:
        Outbox(wake=False).publish(connection, topic, "hello")
