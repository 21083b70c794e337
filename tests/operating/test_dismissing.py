"""Refused messages that are over: their keys were taken after all, or somebody has looked at them."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, delete, insert, update

import inbox
from inbox import Count, Inbox, SqlStore, StatusInbox
from inbox.errors import InvalidOption, MessageNotFound
from inbox.schema import tables
from inbox_outbox_base.checks.keys import digest
from tests.support.filling import fill_inbox
from tests.support.on_servers import on
from tests.support.reads import recorded, scans

TABLES = tables()


def note(engine: Engine, key: str, verdict: str, consumer: str = "billing", **values: Any) -> None:
    with engine.begin() as connection:
        given = {"consumer": consumer, "key": key, "verdict": verdict, "times": 1} | values
        connection.execute(insert(TABLES.refused), given)


def refuse_again(engine: Engine, key: str) -> None:
    c = TABLES.refused.c
    with engine.begin() as connection:
        connection.execute(update(TABLES.refused).where(c.key == key).values(times=c.times + 1))


def counts(engine: Engine, consumer: str = "billing") -> tuple[Count, Count, Count]:
    (found,) = (each for each in inbox.overview(engine).consumers if each.consumer == consumer)
    return found.mismatches, found.too_old, found.given_up


def test_what_was_taken_since_counts_no_more(engine: Engine) -> None:
    """A message that was given up, or was too old, is over once its key is taken, in either mode; a mismatch
    is not, because its key was taken before. The list says which."""
    for key, verdict in (("a", "dead"), ("b", "dead"), ("c", "too_old"), ("d", "mismatch")):
        note(engine, key, verdict)
        note(engine, key, verdict, "orders")
    assert counts(engine) == counts(engine, "orders") == (Count(1), Count(1), Count(2))
    orders = StatusInbox("orders", store=SqlStore(engine), max_attempts=1)
    for key in ("a", "c", "d"):
        with engine.begin() as connection:
            Inbox("billing").accept(connection, key)
        with orders.claim(key):
            pass
    with pytest.raises(ValueError, match="no"), orders.claim("b"):
        raise ValueError("no")
    assert counts(engine) == counts(engine, "orders") == (Count(1), Count(0), Count(1))
    for consumer in ("billing", "orders"):
        found = {each.key: each.taken_since for each in inbox.refused(engine, consumer=consumer)}
        assert found == {"a": True, "b": False, "c": True, "d": False}
    TABLES.status.drop(engine)
    assert counts(engine) == (Count(1), Count(0), Count(1))


def test_many_that_are_over_hide_no_other(engine: Engine) -> None:
    """After an outage whose messages were taken in the end, and beside a replay of old ones, what was refused
    since is counted. A key that was taken with another payload is not over."""
    long_ago = datetime.now(UTC) - timedelta(hours=20)
    rows = [
        {
            "consumer": "billing",
            "key": f"{verdict}-{number}",
            "verdict": verdict,
            "times": 1,
            "last_seen": long_ago,
        }
        for verdict in ("dead", "too_old")
        for number in range(1_100)
    ]
    with engine.begin() as connection:
        connection.execute(insert(TABLES.refused), rows)
        Inbox("billing").accept_many(connection, [f"dead-{number}" for number in range(1_100)])
        Inbox("billing").accept(connection, "other", payload=b"1")
    note(engine, "late", "dead")
    note(engine, "other", "dead", digest=digest(b"2"))
    note(engine, "taken", "mismatch")
    mismatches, _, given_up = counts(engine)
    assert (mismatches.number, given_up.number) == (1, 2)


@on("postgresql", "mariadb", "mysql", "sqlite")
def test_dismissed(engine: Engine) -> None:
    """What somebody has looked at is listed and counted no more, until it is refused again; the decision is
    stored. Exactly what was listed is taken."""
    for key in ("a", "b", "c", ""):
        note(engine, key, "mismatch")
    note(engine, "z", "dead", "orders", last_seen=datetime.now(UTC) - timedelta(hours=1))
    inbox.dismiss(engine, "billing", "a", by="ann", why="the shop was told")
    with pytest.raises(MessageNotFound, match="has no refused message 'a'"):
        inbox.dismiss(engine, "billing", "a")
    inbox.dismiss(engine, "billing", None)
    seen = inbox.refused(engine).seen
    refuse_again(engine, "b")
    note(engine, "e", "mismatch")
    done = inbox.dismiss_all(engine, kind="mismatch", seen=seen, dry_run=True)
    assert (done.done, done.changed) == (1, 1)
    done = inbox.dismiss_all(engine, kind="mismatch", seen=seen, by="bob")
    assert (done.done, done.changed) == (1, 1)
    assert {each.key for each in inbox.refused(engine, consumer="billing")} == {"b", "e"}
    assert inbox.dismiss_all(engine, consumer="billing", by="bob") == 2
    assert [each.key for each in inbox.refused(engine)] == ["z"]
    assert counts(engine, "orders") == (Count(0), Count(0), Count(1))
    stored = [(each.by, each.action, dict(each.filter), each.count) for each in inbox.decisions(engine)]
    assert stored[-1] == ("ann", "inbox.dismiss", {"consumer": "billing", "key": "a"}, 1)
    assert stored[1] == ("bob", "inbox.dismiss_all", {"kind": "mismatch", "seen": 3}, 1)
    assert stored[0] == ("bob", "inbox.dismiss_all", {"consumer": "billing"}, 2)
    with pytest.raises(InvalidOption, match="kind='late': expected one of mismatch, too_old, dead, rejected"):
        inbox.dismiss_all(engine, kind="late")
    with pytest.raises(InvalidOption, match="it came with a listing of messages of status-table mode"):
        inbox.dismiss_all(engine, seen=inbox.list_messages(SqlStore(engine)).seen)


def set_aside(engine: Engine, key: str, **values: Any) -> None:
    with engine.begin() as connection:
        given = {"consumer": "flights", "key": key, "error": "e", "content": "{}", "run": "r"}
        connection.execute(insert(TABLES.rejected), given | {"batch": 0, "part": 0} | values)


@on("postgresql", "mariadb", "mysql", "sqlite")
def test_rows_that_a_bulk_writer_has_set_aside(engine: Engine) -> None:
    """They are dismissed as messages are: one, with the refusals of a message of the same key; or what was
    listed, unless the row was refused again since."""
    for key in ("a", "b", "c", "d"):
        set_aside(engine, key)
    note(engine, "a", "mismatch", "flights")
    note(engine, "e", "mismatch", "flights")
    inbox.dismiss(engine, "flights", "a", by="ann")
    seen = inbox.refused(engine).seen
    with engine.begin() as connection:
        connection.execute(delete(TABLES.rejected).where(TABLES.rejected.c.key == "b"))
        connection.execute(delete(TABLES.rejected).where(TABLES.rejected.c.key == "c"))
    set_aside(engine, "b", run="s", rejected_at=datetime.now(UTC) + timedelta(seconds=1))
    done = inbox.dismiss_all(engine, kind="rejected", seen=seen, dry_run=True)
    assert (done.done, done.changed) == (1, 2)
    done = inbox.dismiss_all(engine, kind="rejected", seen=seen)
    assert (done.done, done.changed) == (1, 2)
    assert [(each.key, each.kind) for each in inbox.refused(engine)] == [("b", "rejected"), ("e", "mismatch")]
    (found,) = inbox.overview(engine).consumers
    assert (found.rejected, found.mismatches) == (Count(1), Count(1))
    assert inbox.dismiss_all(engine, consumer="flights", kind="rejected") == 1
    TABLES.rejected.drop(engine)  # an application without a bulk writer has no such table
    assert inbox.dismiss_all(engine) == 1
    assert inbox.refused(engine) == []


def test_what_was_refused_again_after_a_dismissal(engine: Engine) -> None:
    """Its count begins again, but it is not what the listing has shown."""
    note(engine, "a", "mismatch")
    seen = inbox.refused(engine).seen
    inbox.dismiss(engine, "billing", "a")
    note(engine, "a", "mismatch")
    assert inbox.dismiss_all(engine, seen=seen).changed == 1
    assert [each.key for each in inbox.refused(engine)] == ["a"]


@on("postgresql")
def test_each_key_is_looked_up(engine: Engine) -> None:
    """However many keys a consumer has, only those that were refused are looked for."""
    fill_inbox(engine, 20_000)
    for number in range(200):
        note(engine, f"r{number}", "dead")
    with recorded(engine) as statements:
        assert counts(engine) == (Count(0), Count(0), Count(200))
    asked = [each for each in statements if "inbox_refused" in each[0] and "UNION" in each[0]]
    read = [scan for each in asked for scan in scans(engine, *each)]
    assert read
    assert sum(rows for _, _, rows, _ in read) < 5_000
