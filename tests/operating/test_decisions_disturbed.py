"""Operators' decisions while the database or other operators get in the way."""

import re
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, event, insert, select, update
from sqlalchemy.engine.interfaces import ExceptionContext

import inbox
import outbox
from inbox import SqlStore, Status
from inbox.schema import tables
from inbox_outbox_base.errors.codes import code_of
from outbox import Refused
from tests.support.database import Database
from tests.support.on_servers import BOTH_MYSQL, WITH_WRITERS, on, spread
from tests.support.outbox_publishers import TABLES, Recorder, dead, publish, relay
from tests.support.processes import wait_until
from tests.support.proxy import TcpProxy
from tests.support.relay.crashes import MADE, METADATA
from tests.support.status_mode.repairs import has_ended
from tests.support.together import Task, together, wait_until_blocked

DECISION = tables().decision


def first(engine: Engine) -> str:
    """The id of a dead letter."""
    return str(dead(engine)["a1"].id)


DECISIONS: dict[str, tuple[Callable[[Engine], Any], Any, int]] = {
    "retry_all": (lambda engine: outbox.retry_all(engine, "dead"), outbox.BulkResult(2), 2),
    "discard_all": (lambda engine: inbox.discard_all(SqlStore(engine), "failed"), outbox.BulkResult(2), 2),
    "purge_dead": (lambda engine: outbox.purge_dead(engine, 0), 2, 2),
    "retry": (lambda engine: outbox.retry(engine, first(engine)), "dead", 1),
    "drop": (lambda engine: outbox.drop(engine, first(engine)), "dead", 1),
    "pause": (outbox.pause, True, 1),
    "set_bucket_count": (lambda engine: outbox.set_bucket_count(engine, 3), None, 3),
    "set_policy": (lambda engine: inbox.set_policy(engine, "a", mode="status").mode, "status", 1),
}
"""Each with its result, and how many messages (topics, buckets, consumers) it changes."""


@spread(
    "name, arrived",
    [*product(DECISIONS, [True]), ("retry_all", False)],
    where=WITH_WRITERS,
    elsewhere=2,
)
def test_a_lost_answer_to_commit_changes_nothing(migrated: Database, name: str, arrived: bool) -> None:
    """The connection breaks at the COMMIT of a decision, before or after the server got it. The decision is
    carried out and stored once, and the call returns what it has done."""
    decide, expected, changed = DECISIONS[name]
    direct, address = migrated.engine(), migrated.url
    publish(direct, "a1", "b1")
    relay(direct, Recorder(lambda _: Refused("no")))
    for key in ("k0", "k1"):
        has_ended(SqlStore(direct), Status.FAILED, key)
    with TcpProxy(str(address.host), address.port or 0) as proxy:
        unencrypted = {"sslmode": "disable"} if migrated.name == "postgresql" else {"ssl_disabled": True}
        engine = create_engine(address.set(host="127.0.0.1", port=proxy.port), connect_args=unencrypted)

        @event.listens_for(engine, "before_cursor_execute")
        def arm(connection: Connection, cursor: object, statement: str, *_: object) -> None:
            if statement.startswith("INSERT INTO ops_decision") and not proxy.was_cut.is_set():
                proxy.cut_on(lambda chunk: re.search(rb"COMMIT\0?$", chunk) is not None, forward=arrived)

        answer = decide(engine)
        assert proxy.was_cut.is_set()
        engine.dispose()
    assert (answer, getattr(answer, "changed", 0)) == (expected, 0)
    found = [(each.action.partition(".")[2], each.count) for each in outbox.decisions(direct)]
    assert found == [(name, changed)]


@pytest.mark.mysql
@on(*BOTH_MYSQL)
def test_a_deadlock_is_no_failure(migrated: Database) -> None:
    """The server rolls a decision back because of a deadlock while it is being stored: it is tried again."""
    engine, operators = migrated.engine(), migrated.engine()
    METADATA.create_all(engine)
    publish(engine, "a1")
    relay(engine, Recorder(lambda _: Refused("no")))
    codes = errors_of(operators)
    waiting: list[Task[object]] = []
    with engine.connect().execution_options(isolation_level="REPEATABLE READ") as connection:

        @event.listens_for(operators, "before_cursor_execute")
        def wait_for_the_letter(_: Connection, cursor: object, statement: str, *others: object) -> None:
            if statement.startswith("INSERT INTO ops_decision") and not waiting:
                lock = update(TABLES.dead).values(attempts=TABLES.dead.c.attempts)
                waiting.append(Task(lambda: connection.execute(lock)))
                wait_until_blocked(engine)

        # The victim is the transaction that has changed fewer rows.
        connection.execute(insert(MADE), [{"key": "heavy", "number": number} for number in range(1_000)])
        connection.execute(select(DECISION).with_for_update()).all()  # nobody can add one
        deciding = Task(lambda: outbox.retry_all(operators, "dead"))
        wait_until(lambda: bool(codes))
        waiting[0].result()
        connection.rollback()
        assert deciding.result() == 1
    assert codes[0] == 1213
    assert [each.count for each in outbox.decisions(engine)] == [1]


def errors_of(engine: Engine) -> list[Any]:
    """The codes of the errors on an engine's connections."""
    codes: list[Any] = []

    @event.listens_for(engine, "handle_error")
    def note(context: ExceptionContext) -> None:
        error: Any = context.sqlalchemy_exception
        codes.append(code_of(error))

    return codes


@pytest.mark.mysql
@on(*WITH_WRITERS)
def test_operators_who_delete_old_decisions_at_once(migrated: Database) -> None:
    """Two operators have stored their decisions, and delete those that are older than a year: one waits for
    the other, without a deadlock."""
    engine = migrated.engine()
    old = datetime.now(UTC) - timedelta(days=366)
    row = {"at": old, "by": "ann", "action": "outbox.pause", "filter": "{}", "count": 1}
    with engine.begin() as connection:
        connection.execute(insert(DECISION), [row | {"id": str(number)} for number in range(5)])
    codes, barrier = errors_of(engine), threading.Barrier(2)

    @event.listens_for(engine, "after_cursor_execute")
    def meet(_: Connection, cursor: object, statement: str, *others: object) -> None:
        if statement.startswith("INSERT INTO ops_decision") and not codes:
            barrier.wait(30)

    topics = ("mail", "orders")
    assert together([lambda topic=topic: outbox.pause(engine, topic) for topic in topics]) == [True, True]  # type: ignore[misc]
    assert codes == []
    assert [each.count for each in outbox.decisions(engine)] == [1, 1]
