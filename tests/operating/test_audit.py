"""The audit compares what was committed, sent and taken, on every database."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from sqlalchemy import Engine, delete, event, update

import outbox
from inbox import Inbox, SqlStore, StatusInbox, migration, set_policy, show, status
from inbox.schema import tables as inbox_tables
from outbox import Audit, Envelope, Outcome, Refused, Relay, Unavailable, Unknown
from outbox.errors import InvalidOption, TablesMissing
from tests.support.database import Database
from tests.support.on_servers import WITH_WRITERS, on
from tests.support.outbox_publishers import (
    ACCEPTED,
    TABLES,
    Recorder,
    due_unmoved,
    due_unsent,
    let_leases_end,
    name_of,
    publish,
    relay,
)

CONSUMER = "billing"
COUNTS = ("not_sent", "dead", "not_taken", "on_the_way", "delayed", "taken")


def sent(engine: Engine, *names: str, **outcomes: list[object]) -> list[str]:
    """Publish messages, relay them with `keep_sent`, and return their ids."""
    made = publish(engine, *names)
    relay(engine, Recorder(outcomes), keep_sent=3_600)
    return made


def take(engine: Engine, *keys: str) -> None:
    """Take messages with these keys on the exactly-once path."""
    with engine.begin() as connection:
        for key in keys:
            Inbox(CONSUMER).accept(connection, key)


def consume(engine: Engine, key: str) -> None:
    """Move the consumer to status-table mode and take a message."""
    set_policy(engine, CONSUMER, mode="status")
    with StatusInbox(CONSUMER, store=SqlStore(engine), lease=60).claim(key):
        pass


def counts(found: Audit) -> dict[str, int]:
    """The number of messages of each kind, without the zeros."""
    return {name: count for name in COUNTS if (count := getattr(found, name))}


def audit(engine: Engine, **options: object) -> Audit:
    """Audit the topic, without a grace by default."""
    return outbox.audit(engine, "orders", CONSUMER, **({"grace": 0} | options))  # type: ignore[arg-type]


@on("sqlite")
def test_nothing_is_missing(engine: Engine) -> None:
    """If every message was taken, the audit is complete; other topics and consumers do not matter."""
    sent(engine, "a1", "b1")
    publish(engine, "c1", topic="mail")
    take(engine, "a", "b")
    found = audit(engine)
    assert (found.committed, counts(found), found.missing) == (2, {"taken": 2}, ())
    assert found.is_complete
    assert not outbox.audit(engine, "orders", "somebody else", grace=0).is_complete


def test_each_kind_of_missing_message_is_named(engine: Engine) -> None:
    """Messages that were not sent, are dead or were not taken are counted and named, whatever their state;
    delayed ones are not missing."""
    made = sent(engine, "a1", "b1", "c1", "d1", b1=[Refused("no")], c1=[Unavailable("full", 3_600.0)])
    publish(engine, "e1", delay=3_600)
    take(engine, "a")
    found = audit(engine)
    expected = {"taken": 1, "dead": 1, "not_sent": 1, "not_taken": 1, "delayed": 1}
    assert (found.committed, counts(found)) == (5, expected)
    assert not found.is_complete
    named = {(each.id, each.key, each.state) for each in found.missing}
    assert named == {(made[1], "b", "dead"), (made[2], "c", "waiting"), (made[3], "d", "sent")}


@on("sqlite")
def test_messages_within_the_grace_are_not_missing(engine: Engine) -> None:
    """A message that was published or sent within the grace is not missing; a held one is missing
    immediately, like a dead one."""
    sent(engine, "a1")
    publish(engine, "b1")
    publish(engine, "c1", topic="mail")
    found = audit(engine, grace=timedelta(hours=1))
    assert counts(found) == {"on_the_way": 2}
    assert found.is_complete
    relay(engine, Recorder({"b1": [Refused("no")]}), after_dead="hold")
    assert counts(audit(engine, grace=timedelta(hours=1))) == {"on_the_way": 1, "not_sent": 1}


@pytest.mark.parametrize("state", ["pending", "delayed"])
def test_a_delayed_message_has_its_grace_from_its_due_time(engine: Engine, state: str) -> None:
    """The grace of a delayed message starts when it is due, however long the delay was; when the grace is
    over, the message is missing, also if no relay runs that would move it."""
    make = due_unsent if state == "pending" else due_unmoved
    due = make(engine, "a1", hours=1.5, ago=0.5)
    in_time = counts(audit(engine, grace=timedelta(hours=1)))
    assert in_time == {"on_the_way" if state == "pending" else "delayed": 1}
    found = audit(engine, grace=timedelta(minutes=10))
    assert counts(found) == {"not_sent": 1}
    assert [(each.state, each.since) for each in found.missing] == [(state, due)]
    publish(engine, "b1", delay=3_600)
    assert counts(audit(engine, grace=0)) == {"not_sent": 1, "delayed": 1}


def test_messages_of_status_table_mode(engine: Engine) -> None:
    """In status-table mode a consumed message counts as taken; for every other message the audit shows its
    status."""
    sent(engine, "a1", "b1", "c1")
    inbox = StatusInbox(CONSUMER, store=SqlStore(engine), lease=60)
    with inbox.claim("a"):
        pass
    with pytest.raises(ZeroDivisionError), inbox.claim("b"):
        raise ZeroDivisionError
    found = audit(engine)
    assert counts(found) == {"taken": 1, "not_taken": 2}
    assert {(each.key, each.status) for each in found.missing} == {("b", "failed"), ("c", None)}


def test_messages_that_are_taken_by_their_ids(engine: Engine) -> None:
    """With key="id" two messages with one key count as two; by key, one taken message counts for both. A
    message without a key is always taken by its id."""
    first, _, keyless = sent(engine, "a1", "a2", "-1")
    take(engine, first, keyless)
    assert counts(audit(engine, key="id")) == {"taken": 2, "not_taken": 1}
    assert counts(audit(engine)) == {"taken": 1, "not_taken": 2}
    take(engine, "a")
    assert counts(audit(engine)) == {"taken": 3}


def test_since(engine: Engine) -> None:
    """Messages published before `since` are left out of every count."""
    sent(engine, "a1", "b1", b1=[Refused("no")])
    publish(engine, "c1", delay=3_600)
    publish(engine, "w1")
    since = max(each.created_at for each in outbox.peek(engine)) + timedelta(milliseconds=1)
    assert audit(engine, since=since).committed == 0
    assert audit(engine, since=since - timedelta(hours=1)).committed == 4


def test_messages_that_left_without_a_record(engine: Engine) -> None:
    """The audit says until when messages may have left without a record: they were sent by a relay that keeps
    none, though another one does, or were dropped or purged. Then it is not complete; it is complete for
    messages that were published later, and for other topics."""
    _, refused, _ = sent(engine, "a1", "b1", "c1", b1=[Refused("no")], c1=[Refused("no")])
    take(engine, "a")
    publish(engine, "d1", topic="mail")
    relay(engine, Recorder({"d1": [Refused("no")]}))
    assert audit(engine).unrecorded_until is None
    outbox.drop(engine, refused)
    dropped = audit(engine)
    outbox.purge_dead(engine, 0, topic="orders")
    purged = audit(engine)
    publish(engine, "e1")
    relay(engine, Recorder())
    unrecorded = audit(engine)
    times = [each.unrecorded_until for each in (dropped, purged, unrecorded) if each.unrecorded_until]
    assert len(times) == 3
    assert times == sorted(set(times))
    assert (counts(unrecorded), unrecorded.is_missing_some) == ({"taken": 1}, False)
    assert not unrecorded.is_complete
    assert audit(engine, since=times[-1] + timedelta(milliseconds=1)).is_complete


def test_a_drop_is_no_gap_of_another_topic(engine: Engine) -> None:
    """Messages of one topic that were dropped, or purged, do not matter to the audit of another one."""
    publish(engine, "a1", "b1", topic="mail")
    relay(engine, Recorder({"b1": [Refused("no")]}), keep_sent=60)
    outbox.purge_dead(engine, 0)
    assert audit(engine).is_complete
    assert not outbox.audit(engine, "mail", CONSUMER, grace=3_600).is_complete


@on("sqlite")
def test_a_relay_that_keeps_no_records(engine: Engine) -> None:
    """While a relay is running that keeps no records, or was lost, the audit is not complete; nor after it
    was retired by another one."""
    known: list[bool] = []

    class Looking(Recorder):
        def send(self, batch):  # type: ignore[no-untyped-def]
            known.append(audit(engine, grace=3_600).is_complete)
            let_leases_end(engine)
            known.append(audit(engine, grace=3_600).is_complete)
            Relay(engine, Recorder(), keep_sent=60).run_once()
            known.append(audit(engine, grace=3_600).is_complete)
            return super().send(batch)

    assert audit(engine).is_complete
    publish(engine, "a1")
    Relay(engine, Looking()).run_once()
    assert known == [False] * 3


@on("sqlite")
def test_since_when_the_inbox_knows(engine: Engine) -> None:
    """`taken_since` is the time of the oldest message that the inbox still knows."""
    sent(engine, "a1")
    assert audit(engine).taken_since is None
    take(engine, "a")
    found = audit(engine)
    assert found.taken_since is not None
    assert found.sent_since is not None
    assert found.taken_since >= found.sent_since


@on("sqlite")
def test_only_some_are_named(engine: Engine) -> None:
    """Of each kind, up to `limit` messages are named; all are counted."""
    sent(engine, *(f"-{number}" for number in range(30)))
    publish(engine, *(f"-{number}" for number in range(40)))
    found = audit(engine, limit=7)
    assert (found.not_taken, found.not_sent) == (30, 40)
    states = [each.state for each in found.missing]
    assert (states.count("sent"), states.count("pending"), len(states)) == (7, 7, 14)


@pytest.fixture
def elsewhere(migrated: Database) -> Iterator[Engine]:
    """A separate database for the inbox."""
    from inbox.schema import metadata

    other = Database(migrated.server, migrated.server.new_database())
    metadata.create_all(other.engine())
    yield other.engine()
    other.close()


def test_an_inbox_in_another_database(
    engine: Engine, elsewhere: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An inbox in another database is compared page by page, with the same result as in the same database."""
    monkeypatch.setattr("outbox._operating.audit_parts._PAGE", 3)
    made = sent(engine, *(f"{key}1" for key in "abcdefgh"), "-1", h1=[Refused("no")])
    for place in (engine, elsewhere):
        take(place, "a", "c", "d", made[-1])
        consume(place, "f")
    for key in ("key", "id"):
        together, apart = audit(engine, key=key), audit(engine, key=key, inbox_engine=elsewhere)
        assert replace(together, taken_since=None) == replace(apart, taken_since=None)
    assert counts(audit(engine, inbox_engine=elsewhere)) == {"taken": 5, "not_taken": 3, "dead": 1}
    assert len(audit(engine, inbox_engine=elsewhere, limit=2).missing) == 3
    assert counts(audit(engine, inbox_engine=elsewhere, grace=3_600)) == {
        "taken": 5,
        "on_the_way": 3,
        "dead": 1,
    }


@on("postgresql")
def test_messages_with_one_number(engine: Engine, elsewhere: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The audit counts messages of several buckets that have the same number, as after a copy of rows, also
    if they are not on the same page."""
    monkeypatch.setattr("outbox._operating.audit_parts._PAGE", 1)
    ids = publish(engine, "a1", "b1", "c1")
    relay(engine, Recorder(lambda _: Unknown("silence")))
    with engine.begin() as connection:
        for bucket, own in enumerate(ids):
            place = {"bucket": bucket, "sequence": 9}
            connection.execute(update(TABLES.message).where(TABLES.message.c.id == own).values(place))
    take(elsewhere, "a", "b", "c")
    assert counts(audit(engine, inbox_engine=elsewhere)) == {"taken": 3}


def test_messages_taken_although_their_sends_got_no_answer(
    engine: Engine, elsewhere: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message that was taken counts as taken even if its sends got no answer, and even if it is dead
    by now. A message that was refused or never sent is missing, even if another message with its key was
    taken."""
    monkeypatch.setattr("outbox._operating.audit_parts._PAGE", 3)
    silent = Recorder(lambda message: Refused("no") if name_of(message) == "a2" else Unknown("silence"))
    sent(engine, "a1")
    publish(engine, "a2", "b1", "c1", "d1", "e1", "f1")
    relay(engine, silent, max_attempts=1)
    publish(engine, "h1", "i1", "j1", "k1", "l1")
    relay(engine, silent)
    publish(engine, "a3")
    for place in (engine, elsewhere):
        take(place, *"abcd", *"hijk")
        consume(place, "e")
    for inbox_engine in (None, elsewhere):
        found = audit(engine, inbox_engine=inbox_engine)
        assert counts(found) == {"taken": 9, "dead": 2, "not_sent": 2}
        assert found.committed == 13
        named = {(each.key, each.state) for each in found.missing}
        assert named == {("a", "dead"), ("f", "dead"), ("l", "unknown"), ("a", "pending")}
    assert len(audit(engine, inbox_engine=elsewhere, limit=1).missing) == 2
    assert counts(audit(engine, inbox_engine=elsewhere, grace=3_600)) == {
        "taken": 9,
        "dead": 2,
        "on_the_way": 2,
    }


@on(*WITH_WRITERS)  # on SQLite, whoever reads keeps others from writing
def test_a_message_that_moves_meanwhile(engine: Engine, migrated: Database) -> None:
    """A dead letter that is retried during the audit is counted exactly once."""
    (made,) = sent(engine, "a1", a1=[Refused("no")])
    looking, states = migrated.engine(), list[str]()

    def move(_: Any, __: Any, statement: str, *___: Any) -> None:
        if "FROM outbox_message" in statement and not states:
            states.append(outbox.retry(engine, made))

    event.listen(looking, "after_cursor_execute", move)
    found = audit(looking)
    assert states == ["dead"]
    assert (found.committed, found.is_complete) == (1, False)
    assert [each.id for each in found.missing] == [made]


def test_keys_compare_byte_for_byte(engine: Engine) -> None:
    """A message does not count as taken because one with a similar key was."""
    sent(engine, "a1", "A1", "ä1")
    take(engine, "A", "a ", "ä")
    found = audit(engine)
    assert [each.key for each in found.missing] == ["a"]


def test_messages_that_a_lost_relay_was_sending(engine: Engine, elsewhere: Engine) -> None:
    """They count as taken if the consumer has them, although no relay has marked them yet."""
    publish(engine, "a1", "b1")

    found: list[Audit] = []

    def answer(_: Envelope) -> Outcome:
        let_leases_end(engine)
        for inbox_engine in (None, elsewhere):
            take(inbox_engine or engine, "a")
            found.append(audit(engine, inbox_engine=inbox_engine))
            with (inbox_engine or engine).begin() as connection:
                connection.execute(delete(inbox_tables().message))
        return ACCEPTED

    relay(engine, Recorder(answer))
    assert len(found) == 4
    for each in found[:2]:
        assert counts(each) == {"taken": 1, "not_sent": 1}
        assert [(missing.key, missing.state) for missing in each.missing] == [("b", "pending")]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"since": datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=9)))},
            "since=.*: expected a time of",
        ),
        ({"key": "name"}, "key='name': expected one of key, id"),
        ({"since": "today"}, "since='today': expected a datetime"),
        ({"grace": -1}, "grace=-1"),
        ({"limit": 0}, "limit=0"),
    ],
)
def test_wrong_options(options: dict[str, object], said: str) -> None:
    """An invalid option is rejected before the database is used; the error names it."""
    with pytest.raises(InvalidOption, match=said):
        audit(None, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ["inbox", "status"])
def test_some_features_only(database: Database, mode: str) -> None:
    """An application with one mode has the tables of that mode; `status`, `show` and `audit` need no more."""
    engine = database.engine()
    migration.migrate(engine, features=[mode, "outbox"])
    sent(engine, "a1", "b1")
    if mode == "inbox":
        take(engine, "a")
    else:
        with StatusInbox(CONSUMER, store=SqlStore(engine), lease=60).claim("a"):
            pass
    for inbox_engine in (None, engine):
        assert counts(audit(engine, inbox_engine=inbox_engine)) == {"taken": 1, "not_taken": 1}
    assert [each.consumer for each in status(engine)] == [CONSUMER]
    assert (show(engine, CONSUMER, "a") is None) is (mode == "status")


@on("sqlite")
def test_without_tables(database: Database) -> None:
    """If the tables are missing, the error names the command that creates them."""
    with pytest.raises(TablesMissing, match="inbox-outbox migrate"):
        audit(database.engine())
