"""Operators' decisions are stored, in the transactions that carry them out."""

import dataclasses
import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, insert, select
from sqlalchemy.exc import DBAPIError

import inbox
import outbox
from inbox import OperatorDecision, RedisStore, SqlStore, Status, StatusInbox
from inbox._status_mode.stores import Store
from inbox.errors import InvalidOption, TablesMissing, WrongStatus
from inbox.migration import migrate
from inbox.schema import tables
from outbox import Refused
from outbox.errors import OutboxError
from tests.support.database import Database
from tests.support.on_servers import on
from tests.support.outbox_publishers import TABLES, Recorder, count, dead, publish, relay, waiting
from tests.support.status_mode.repairs import KEY, has_ended, history
from tests.support.status_mode.stores import CONSUMER, stored

DECISION = tables().decision
ANN: dict[str, Any] = {"by": "ann", "why": "the broker is back"}


def decided(engine: Engine) -> list[tuple[str, dict[str, Any], int]]:
    """What was decided, the oldest first."""
    found = outbox.decisions(engine)
    assert all((each.by, each.why) == ("ann", "the broker is back") for each in found)
    return [(each.action, dict(each.filter), each.count) for each in reversed(found)]


def test_decisions_about_the_outbox(engine: Engine) -> None:
    """Each decision is stored with the function, who, why, what it was about, and how many messages it
    changed, by the database's clock. Both packages list the same decisions, the newest first."""
    ids = publish(engine, "a1", "b1", "c1", "d1", "e1", "f1")
    relay(engine, Recorder(lambda _: Refused("no")))
    outbox.pause(engine, "mail", **ANN)
    outbox.resume(engine, "mail", **ANN)
    outbox.retry(engine, ids[0], **ANN)
    outbox.drop(engine, ids[1], **ANN)
    outbox.retry_all(engine, "dead", topic="orders", key="c", **ANN)
    outbox.drop_all(engine, "dead", error="no", seen=outbox.peek(engine, 2, state="dead").seen, **ANN)
    outbox.purge_dead(engine, 0, **ANN)
    outbox.set_bucket_count(engine, 3, **ANN)
    one = {"topic": "orders", "state": "dead"}
    assert decided(engine) == [
        ("outbox.pause", {"topic": "mail"}, 1),
        ("outbox.resume", {"topic": "mail"}, 1),
        ("outbox.retry", {"id": ids[0], "key": "a"} | one, 1),
        ("outbox.drop", {"id": ids[1], "key": "b"} | one, 1),
        ("outbox.retry_all", {"state": "dead", "topic": "orders", "key": "c"}, 1),
        ("outbox.drop_all", {"state": "dead", "error": "no", "seen": 2}, 2),
        ("outbox.purge_dead", {"older_than": 0.0}, 1),
        ("outbox.set_bucket_count", {"count": 3}, 3),
    ]
    found = inbox.decisions(engine, limit=2)
    assert found == outbox.decisions(engine)[:2]
    assert found[0].action == "outbox.set_bucket_count"
    assert abs(datetime.now(UTC) - found[0].at) < timedelta(minutes=5)
    with pytest.raises(dataclasses.FrozenInstanceError):
        found[0].by = "bob"  # type: ignore[misc]


def test_decisions_about_the_inbox(engine: Engine) -> None:
    """The same for decisions about messages of status-table mode, and about policies."""
    store = SqlStore(engine)
    for number, status in enumerate((Status.DEAD, Status.FAILED, Status.HALTED, Status.DEAD, Status.DEAD)):
        has_ended(store, status, f"k{number}")
    inbox.retry(store, CONSUMER, "k0", **ANN)
    inbox.discard(store, CONSUMER, "k1", **ANN)
    inbox.resolve_step(store, CONSUMER, "k2", "charge", "not_done", **ANN)
    with pytest.raises(inbox.errors.LeaseLost), StatusInbox(CONSUMER, store=store).claim("k5"):
        inbox.release(store, CONSUMER, "k5", **ANN)
    inbox.retry_all(store, "dead", key="k3", **ANN)
    inbox.discard_all(store, "dead", consumer=CONSUMER, **ANN)
    inbox.set_policy(engine, "billing", mode="exactly-once", retention=60, **ANN)
    one = {"consumer": CONSUMER}
    assert decided(engine) == [
        ("inbox.retry", one | {"key": "k0", "status": "dead"}, 1),
        ("inbox.discard", one | {"key": "k1", "status": "failed"}, 1),
        ("inbox.resolve_step", one | {"key": "k2", "status": "halted", "step": "charge"}, 1),
        ("inbox.release", one | {"key": "k5", "status": "consuming"}, 1),
        ("inbox.retry_all", {"status": "dead", "key": "k3"}, 1),
        ("inbox.discard_all", one | {"status": "dead"}, 1),
        (
            "inbox.set_policy",
            {"consumer": "billing", "mode": "exactly-once", "retention": 60, "margin": 0},
            1,
        ),
    ]


@on("sqlite", "redis", fixture="place")
def test_the_history_says_who_and_why(store: Store) -> None:
    """A message's own error and history have the operator and the reason; on Redis nothing else has them."""
    has_ended(store, Status.DEAD)
    inbox.retry(store, CONSUMER, KEY, **ANN)
    assert stored(store, KEY).error == "to be retried by ann: the broker is back"
    entry = history(store)[-1]
    assert (entry["owner"], entry["error"]) == ("ann", "to be retried: the broker is back")
    assert isinstance(store, RedisStore) or len(inbox.decisions(store.engine)) == 1  # type: ignore[attr-defined]


def test_who_has_paused_a_topic(engine: Engine) -> None:
    """The row of a paused topic says who has paused it, and why."""
    outbox.pause(engine, "mail", **ANN)
    with engine.connect() as connection:
        row = connection.execute(select(TABLES.pause)).one()
    assert (row.topic, row.paused_by, row.why) == ("mail", "ann", "the broker is back")


@on("sqlite")
def test_what_changes_nothing_is_not_stored(engine: Engine) -> None:
    """A call that finds nothing to change, is refused, or only counts stores no decision."""
    outbox.pause(engine, "mail")
    assert not outbox.pause(engine, "mail")
    assert not outbox.resume(engine, "other")
    assert outbox.retry_all(engine, "dead") == 0
    assert outbox.purge_dead(engine, 0) == 0
    outbox.set_bucket_count(engine, 64)
    (pending,) = publish(engine, "a1")
    with pytest.raises(outbox.errors.WrongState):
        outbox.retry(engine, pending)
    outbox.drop(engine, pending, dry_run=True)
    store = SqlStore(engine)
    has_ended(store, Status.FAILED)
    with pytest.raises(WrongStatus):
        inbox.release(store, CONSUMER, KEY)
    inbox.discard_all(store, "failed", dry_run=True)
    assert [each.action for each in outbox.decisions(engine)] == ["outbox.pause"]


def decide(engine: Engine) -> None:
    """A decision about the outbox, of several transactions, and one about the inbox."""
    publish(engine, *(f"-{number}" for number in range(5)))
    relay(engine, Recorder(lambda _: Refused("no")))
    outbox.retry_all(engine, "dead")
    store = SqlStore(engine)
    has_ended(store, Status.DEAD)
    inbox.retry(store, CONSUMER, KEY)


def test_without_the_table(
    engine: Engine, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the table, decisions are carried out. Each call logs one WARNING that it is not recorded,
    however many transactions it has; the listing names the command that creates the table."""
    monkeypatch.setattr("outbox._operating.bulk._WRITTEN", 2)
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE ops_decision")
    with caplog.at_level(logging.WARNING, "inbox.decisions"):
        decide(engine)
    assert count(engine, TABLES.dead) == 0
    assert count(engine, TABLES.message) == 5
    assert stored(SqlStore(engine), KEY).status is Status.FAILED
    said = [each.getMessage() for each in caplog.records if each.name == "inbox.decisions"]
    assert [each.split(" is not recorded: ")[0].split(" by ")[0] for each in said] == [
        "outbox.retry_all",
        "inbox.retry",
    ]
    listings: list[Callable[[Engine], object]] = [inbox.decisions, outbox.decisions]
    for listing in listings:
        with pytest.raises(TablesMissing, match=r"table ops_decision is not .*inbox-outbox migrate"):
            listing(engine)


def test_a_decision_that_cannot_be_stored_for_another_reason(engine: Engine) -> None:
    """If the database refuses the row of the decision, nothing of the decision stays: the two are one
    transaction."""
    (letter, _) = publish(engine, "a1", "b1")
    relay(engine, Recorder(lambda _: Refused("no")))
    store = SqlStore(engine)
    has_ended(store, Status.DEAD)
    with engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE ops_decision DROP COLUMN why")
    for refused in (
        lambda: outbox.retry(engine, letter),
        lambda: outbox.drop_all(engine, "dead"),
        lambda: outbox.pause(engine),
        lambda: inbox.retry(store, CONSUMER, KEY),
    ):
        with pytest.raises(DBAPIError):
            refused()
    assert [*dead(engine)] == ["a1", "b1"]
    assert not waiting(engine)
    assert outbox.status(engine).paused == ()
    assert stored(store, KEY).status is Status.DEAD


def test_decisions_are_kept_for_a_year(engine: Engine) -> None:
    """The next decision deletes those that are older than a year."""
    row = {"by": "ann", "action": "outbox.pause", "filter": "{}", "count": 1}
    with engine.begin() as connection:
        for days in (364, 366, 400):
            at = datetime.now(UTC) - timedelta(days=days)
            connection.execute(insert(DECISION), row | {"id": str(days), "at": at})
    outbox.pause(engine)
    assert [each.id for each in outbox.decisions(engine)][1:] == ["364"]


@on("sqlite")
def test_invalid_names_and_reasons(engine: Engine) -> None:
    """An invalid name or reason is refused before anything is changed; the error names the option."""
    (made,) = publish(engine, "a1")
    store = SqlStore(engine)
    has_ended(store, Status.DEAD)
    of_outbox: list[Callable[[dict[str, Any]], object]] = [
        lambda given: outbox.pause(engine, **given),
        lambda given: outbox.resume(engine, **given),
        lambda given: outbox.drop(engine, made, **given),
        lambda given: outbox.retry_all(engine, "dead", **given),
        lambda given: outbox.purge_dead(engine, 0, **given),
        lambda given: outbox.set_bucket_count(engine, 3, **given),
    ]
    of_inbox: list[Callable[[dict[str, Any]], object]] = [
        lambda given: inbox.retry(store, CONSUMER, KEY, **given),
        lambda given: inbox.discard_all(store, "dead", **given),
        lambda given: inbox.set_policy(engine, "a", mode="status", **given),
    ]
    bad: dict[str, Any] = {"by": ["", "é" * 128, 7, "a\0"], "why": ["", 1_001 * "a", 7, "\ud800"]}
    for option, values in bad.items():
        for value in values:
            for decision in of_outbox:
                with pytest.raises(InvalidOption, match=f"{option}=") as caught:
                    decision({option: value})
                assert isinstance(caught.value, OutboxError)
            for decision in of_inbox:
                with pytest.raises(InvalidOption, match=f"{option}="):
                    decision({option: value})
    assert outbox.decisions(engine) == []
    assert stored(store, KEY).status is Status.DEAD


@on("sqlite")
def test_who_decides_by_default(engine: Engine) -> None:
    """Without a name it is the host and the process; without a reason there is none."""
    outbox.pause(engine)
    (found,) = outbox.decisions(engine)
    assert isinstance(found, OperatorDecision)
    assert found.by.rpartition(":")[2].isdigit()
    assert found.why is None


def test_in_a_schema(postgres: Database) -> None:
    """Decisions about tables in a schema are stored in that schema."""
    engine = postgres.engine()
    migrate(engine, schema="ops")
    outbox.pause(engine, schema="ops", **ANN)
    store = SqlStore(engine, schema="ops")
    has_ended(store, Status.DEAD)
    inbox.retry(store, CONSUMER, KEY, **ANN)
    assert [each.action for each in outbox.decisions(engine, schema="ops")] == ["inbox.retry", "outbox.pause"]
    assert inbox.decisions(engine) == []
