"""The statements of docs/production.md about connections."""

import time
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, event

from inbox import Action, Claim, Inbox, SqlStore, StatusInbox
from outbox import Outbox, Relay
from tests.support import accounts
from tests.support.database import Database
from tests.support.on_servers import on
from tests.support.outbox_publishers import Recorder, publish
from tests.support.processes import wait_until
from tests.support.together import Task

WORKERS = 4
many_writers = on("postgresql", "mariadb", "mysql")
MESSAGES = [str(number) for number in range(20)]


class Most:
    """The largest number of connections of an engine's pool in use at the same time."""

    def __init__(self, engine: Engine) -> None:
        self.most = 0
        self._pool: Any = engine.pool
        event.listen(engine, "checkout", self._look)

    def _look(self, *_: object) -> None:
        self.most = max(self.most, self._pool.checkedout())


@many_writers
def test_the_exactly_once_path_needs_a_connection_for_each_message(migrated: Database) -> None:
    """A listener with `concurrency=4` uses four connections of the pool, even if the handlers publish."""
    engine = migrated.engine(pool_size=WORKERS, max_overflow=0, pool_timeout=5)
    accounts.make(engine, MESSAGES)
    most, inbox = Most(engine), Inbox("billing")

    @inbox.handler(engine, key=str)
    def add(connection: Connection, message: str) -> None:
        accounts.add(connection, message)
        Outbox().publish(connection, "added", message)
        time.sleep(0.02)

    decisions = inbox.listener(concurrency=WORKERS).decide(MESSAGES, add)
    assert {decision.action for decision in decisions} == {Action.ACK}
    assert most.most == WORKERS


@many_writers
def test_status_mode_needs_some_more_for_heartbeats(migrated: Database) -> None:
    """Status-table mode uses at most one connection for each message, and one for each round of heartbeats,
    of which three can run at the same time."""
    engine = migrated.engine(pool_size=WORKERS + 3, max_overflow=0, pool_timeout=5)
    accounts.make(engine, MESSAGES)
    most = Most(engine)
    inbox = StatusInbox("orders", store=SqlStore(engine), lease=3)

    @inbox.handler(key=str)
    def add(claim: Claim, message: str) -> None:
        claim.step("wait", lambda: time.sleep(0.3))
        claim.transact("add", lambda connection: accounts.add(connection, message))

    decisions = inbox.listener(concurrency=WORKERS).decide(MESSAGES, add)
    assert {decision.action for decision in decisions} == {Action.ACK}
    assert most.most <= WORKERS + 3


class Slow(Recorder):
    """A publisher that takes longer than half of the lease, so that the lease has to be renewed meanwhile."""

    timeout = 1.8

    def send(self, batch: Any) -> Any:
        time.sleep(1.5)
        return super().send(batch)


def test_a_relay_needs_two_connections(migrated: Database) -> None:
    """A relay uses one connection for its transactions and one while it renews its lease; on PostgreSQL it
    has a third one outside the pool."""
    engine = migrated.engine(pool_size=2, max_overflow=0, pool_timeout=5)
    publish(engine, "a1", "b1", "a2")
    most, publisher = Most(engine), Slow()
    relay = Relay(engine, publisher, lease=2.5)
    running = Task(relay.run)
    wait_until(lambda: len(publisher.accepted) == 3)
    relay.stop()
    running.result()
    assert most.most <= 2


def test_a_server_that_ends_idle_sessions(postgres: Database, caplog: pytest.LogCaptureFixture) -> None:
    """When an idle_session_timeout ends a relay's listening connection again and again, the relay logs this,
    polls and goes on; nothing is logged as an error."""
    engine = postgres.engine(connect_args={"options": "-c idle_session_timeout=300ms"}, pool_pre_ping=True)
    publisher = Recorder()
    relay = Relay(engine, publisher, poll=0.1)
    running = Task(relay.run)
    wait_until(lambda: any("no wake-up from other processes" in each.message for each in caplog.records))
    publish(postgres.engine(), "a1")
    wait_until(lambda: len(publisher.accepted) == 1)
    relay.stop()
    running.result()
    assert {each.levelname for each in caplog.records} <= {"DEBUG", "INFO", "WARNING"}
