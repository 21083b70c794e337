"""A relay's transactions fail for outside reasons: lost answers, deadlocks, a database that does not
answer."""

import re
from itertools import product
from threading import Event

import pytest
from sqlalchemy import Connection, create_engine, event, insert, select, update
from sqlalchemy.engine.interfaces import ExceptionContext

from inbox import is_transient
from outbox import Refused, Relay
from outbox.schema import BUCKETS
from tests.support.database import Database
from tests.support.on_servers import on, spread
from tests.support.outbox_publishers import TABLES, Recorder, count, let_leases_end, publish
from tests.support.processes import wait_until
from tests.support.proxy import TcpProxy
from tests.support.relay.crashes import MADE, METADATA, Paused, engine_of, is_shared, ownership
from tests.support.relay.worker import COMPLETION
from tests.support.together import Task, wait_until_blocked

SERVERS = ("postgresql", "mariadb")
COMMITS = {
    "join": "INSERT INTO outbox_relay",
    "tend": "UPDATE outbox_bucket SET epoch",
    "note": "UPDATE outbox_relay SET sending",
    "completion": COMPLETION,
    "leave": "DELETE FROM outbox_relay",
}
"""A relay's transactions, each with a statement that no earlier transaction runs."""


@spread("arrived, commit", product([True, False], COMMITS), elsewhere=len(COMMITS), where=SERVERS)
def test_a_lost_answer_to_commit_changes_nothing(migrated: Database, arrived: bool, commit: str) -> None:
    """The connection breaks at a COMMIT of the relay, before or after the server got it. Every message is
    sent once and recorded once, and so is the dead letter. A relay that has joined without getting the answer
    counts as another member, whose share is free once its lease has expired."""
    direct = engine_of(migrated)
    publish(direct, "a1", "a2", "b1", "c1", "c2")
    publisher = Recorder({"c1": [Refused("no")]})
    address = migrated.url
    with TcpProxy(str(address.host), address.port or 0) as proxy:
        unencrypted = {"sslmode": "disable"} if migrated.name == "postgresql" else {"ssl_disabled": True}
        engine = create_engine(address.set(host="127.0.0.1", port=proxy.port), connect_args=unencrypted)

        @event.listens_for(engine, "before_cursor_execute")
        def arm(connection: Connection, cursor: object, statement: str, *_: object) -> None:
            if re.match(COMMITS[commit], statement) and not proxy.was_cut.is_set():
                proxy.cut_on(lambda chunk: re.search(rb"COMMIT\0?$", chunk) is not None, forward=arrived)

        relay = Relay(engine, publisher, keep_sent=3_600)
        relayed = relay.run_once()
        assert proxy.was_cut.is_set()
        if commit == "join":
            let_leases_end(direct)
            relayed += relay.run_once()
        assert relayed == 4
        engine.dispose()
    assert sorted(publisher.names) == ["a1", "a2", "b1", "c1", "c2"]
    assert [count(direct, table) for table in (TABLES.message, TABLES.sent, TABLES.dead)] == [0, 4, 1]
    assert ownership(direct) == {None: BUCKETS}


@spread("stopping", [True, False], where=SERVERS)
def test_a_deadlock_is_no_failure(migrated: Database, stopping: bool) -> None:
    """The transaction that records the outcomes of a batch fails with a deadlock: it is tried again, even if
    it is the relay's last one. The message is sent once, and the buckets are free immediately."""
    engine, relays = engine_of(migrated), engine_of(migrated)
    METADATA.create_all(engine)
    publish(engine, "a1")
    died: list[BaseException | None] = []

    @event.listens_for(relays, "handle_error")
    def note(context: ExceptionContext) -> None:
        died.append(context.sqlalchemy_exception)

    has_renewed, may_complete = Event(), Event()

    @event.listens_for(relays, "before_cursor_execute")
    def hold_back(connection: Connection, cursor: object, statement: str, *_: object) -> None:
        if re.match(COMPLETION, statement) and not has_renewed.is_set():
            has_renewed.set()
            assert may_complete.wait(60)

    publisher = Paused()
    relay = Relay(relays, publisher, lease=600)
    running = Task(relay.run)
    assert publisher.begun.wait(60)
    if stopping:
        relay.stop()
    with engine.connect() as connection:
        if migrated.name == "postgresql":
            # The session that detects a deadlock is aborted. This one waits too long to be the first.
            connection.exec_driver_sql("SET LOCAL deadlock_timeout = '10min'")
        # MySQL and MariaDB abort the transaction that has changed fewer rows.
        connection.execute(insert(MADE), [{"key": "heavy", "number": number} for number in range(1_000)])
        connection.execute(select(TABLES.message.c.id).with_for_update()).all()
        publisher.may_end.set()
        assert has_renewed.wait(60)
        waiting = Task(lambda: connection.execute(update(TABLES.relay).values(name="other")))
        wait_until_blocked(engine)
        may_complete.set()
        waiting.result()
        connection.rollback()
    wait_until(lambda: count(engine, TABLES.message) == 0)
    relay.stop()
    running.result()
    assert publisher.names == ["a1"]
    assert died  # once, or more often if the relay's next attempt comes before the other transaction ends
    assert all(is_transient(error) for error in died if error is not None)
    assert ownership(engine) == {None: BUCKETS}


@on(*SERVERS)
def test_a_relay_can_be_stopped_while_the_database_is_away(
    migrated: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """`run` ends, and logs that the buckets are free only once the lease has expired."""
    direct, address = engine_of(migrated), migrated.url
    with TcpProxy(str(address.host), address.port or 0) as proxy:
        engine = create_engine(address.set(host="127.0.0.1", port=proxy.port))
        relay = Relay(engine, Recorder())
        task = Task(relay.run)
        wait_until(lambda: is_shared(direct, 1))
    wait_until(lambda: "does not answer" in caplog.text)
    relay.stop()
    task.result()
    assert "free when its lease expires" in caplog.text
    engine.dispose()
