"""What happens to a message for each outcome that the publisher reports."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from psycopg import ClientCursor
from sqlalchemy import Engine, select

from inbox import Backoff
from outbox import Accepted, Envelope, Outbox, Outcome, Refused, Relay, Unavailable, Unknown
from tests.support.database import Database
from tests.support.on_servers import on, spread
from tests.support.outbox_publishers import (
    ACCEPTED,
    TABLES,
    Recorder,
    count,
    dead,
    let_backoffs_end,
    let_records_end,
    name_of,
    names_of,
    publish,
    relay,
    waiting,
)

pytestmark = pytest.mark.mysql

NEVER = Backoff(first=3_600, longest=3_600)


def test_an_accepted_message_is_gone(engine: Engine) -> None:
    """An accepted message was sent as it was published, with the id that `publish` returned, and leaves no
    rows."""
    before = datetime.now(UTC)
    with engine.begin() as connection:
        headers = {"x": "ü", "y": ""}
        published = Outbox().publish(connection, "orders", {"order": "ä"}, key="a", headers=headers)
    publisher = Recorder()
    assert relay(engine, publisher) == 1
    (envelope,) = publisher.sent
    assert UUID(published).version
    assert (envelope.id, envelope.topic, envelope.key) == (published, "orders", "a")
    assert (envelope.payload, envelope.content_type) == ('{"order":"ä"}'.encode(), "application/json")
    assert (envelope.headers, envelope.attempt) == (headers, 1)
    assert abs(envelope.created_at - before) < timedelta(minutes=5)
    left = (TABLES.message, TABLES.dead, TABLES.sent, TABLES.relay)
    assert [count(engine, table) for table in left] == [0] * 4
    assert relay(engine, publisher) == 0
    assert len(publisher.sent) == 1


def test_a_cursor_that_reads_only_text(postgres: Database) -> None:
    """psycopg's ClientCursor, which puts parameters into the statement's text, yields the same messages."""
    engine = postgres.engine(connect_args={"cursor_factory": ClientCursor})
    payload = bytes(range(256))
    with engine.begin() as connection:
        Outbox().publish(connection, "orders", payload, key="ä")
    publisher = Recorder()
    assert relay(engine, publisher) == 1
    (envelope,) = publisher.sent
    assert (envelope.payload, envelope.key) == (payload, "ä")
    assert abs(envelope.created_at - datetime.now(UTC)) < timedelta(minutes=5)


def test_times_are_in_utc(postgres: Database) -> None:
    """A message's creation time is in UTC, whatever the session's time zone is."""
    engine = postgres.engine()
    with engine.begin() as connection:
        connection.exec_driver_sql(f"ALTER DATABASE \"{postgres.url.database}\" SET timezone = 'Asia/Tokyo'")
    engine.dispose()
    before = datetime.now(UTC)
    publish(engine, "a1")
    publisher = Recorder()
    assert relay(engine, publisher) == 1
    (created,) = [envelope.created_at for envelope in publisher.sent]
    assert created.tzinfo is UTC
    assert abs(created - before) < timedelta(minutes=5)


@on("sqlite")
def test_how_many_were_relayed(engine: Engine) -> None:
    """`run_once` returns how many messages were accepted in all its batches, and starts from zero at each
    call."""
    publish(engine, *(f"{key}{number}" for number in range(30) for key in "abcdefgh"))
    publish(engine, *(f"-{number}" for number in range(50)))
    publisher = Recorder({"a3": [Refused("no")], "b5": [Unavailable("later")]})
    again = Relay(engine, publisher, batch=40, backoff=NEVER)
    assert again.run_once() == 290 - 1 - 25
    assert again.run_once() == 0
    let_backoffs_end(engine)
    assert again.run_once() == 25
    assert max(len(batch) for batch in publisher.batches) <= 40
    assert list(waiting(engine)) == []


def test_a_refused_message_is_a_dead_letter(engine: Engine) -> None:
    """A refused message becomes a dead letter with the reason and the number of sends, and is not sent
    again."""
    (published,) = publish(engine, "a1", headers={"x": "y"})
    publisher = Recorder({"a1": [Unavailable("busy"), Refused("too large")]})
    assert relay(engine, publisher) == 0
    let_backoffs_end(engine)
    assert relay(engine, publisher) == 0
    assert relay(engine, publisher) == 0
    assert publisher.names == ["a1", "a1"]
    assert not waiting(engine)
    row = dead(engine)["a1"]
    assert (row.id, row.topic, row.key, row.headers) == (published, "orders", "a", '{"x":"y"}')
    assert (row.attempts, row.outcome, row.error) == (2, "refused", "too large")


@on("sqlite")
def test_an_unavailable_message_is_tried_for_ever(engine: Engine) -> None:
    """However often the broker is unavailable, the message is sent again with the same id and the next
    attempt number, and never becomes a dead letter."""
    (published,) = publish(engine, "a1")
    publisher = Recorder({"a1": [Unavailable("away")] * 20})
    for attempt in range(1, 21):
        assert relay(engine, publisher, max_attempts=2) == 0
        row = waiting(engine)["a1"]
        assert (row.attempts, row.unanswered, row.state, row.error) == (attempt, 0, "pending", "away")
        let_backoffs_end(engine)
    assert relay(engine, publisher) == 1
    assert [each.attempt for each in publisher.sent] == [*range(1, 22)]
    assert {each.id for each in publisher.sent} == {published}
    assert not dead(engine)


@on("sqlite")
def test_an_unknown_message_is_sent_again_until_it_is_dead(engine: Engine) -> None:
    """If it is unknown whether a message was accepted, it is sent again with the same id, up to
    `max_attempts` times."""
    (published,) = publish(engine, "a1")
    publisher = Recorder(lambda _: Unknown("no answer"))
    for attempt in range(1, 3):
        assert relay(engine, publisher, max_attempts=3) == 0
        row = waiting(engine)["a1"]
        assert (row.attempts, row.unanswered, row.state, row.error) == (
            attempt,
            attempt,
            "unknown",
            "no answer",
        )
        let_backoffs_end(engine)
    assert relay(engine, publisher, max_attempts=3) == 0
    assert [(each.id, each.attempt) for each in publisher.sent] == [(published, n) for n in (1, 2, 3)]
    assert not waiting(engine)
    row = dead(engine)["a1"]
    assert (row.attempts, row.outcome, row.error) == (3, "unknown", "no answer after 3 sends")


@spread("outcome", [Unavailable("a"), Unknown("a")])
def test_the_backoff_grows_with_chance(engine: Engine, outcome: Outcome) -> None:
    """A message waits by the backoff for its own number of sends, and the waits of several messages
    differ."""
    publish(engine, *"abcdefgh")
    backoff = Backoff(first=1_000, factor=3, longest=100_000)
    publisher = Recorder(lambda _: outcome)
    for attempt in range(1, 4):
        while sum(row.attempts == attempt for row in waiting(engine).values()) < 8:
            relay(engine, publisher, backoff=backoff)
        waits = _seconds_left(engine)
        full = 1_000 * 3 ** (attempt - 1)
        assert all(full / 2 - 120 < wait <= full for wait in waits.values())
        assert len(set(waits.values())) > 1
        let_backoffs_end(engine)


@on("sqlite")
def test_how_long_the_broker_wants_to_be_left_alone(engine: Engine) -> None:
    """A broker's `retry_after` overrides the backoff for that message."""
    publish(engine, "a1", "b1")
    publisher = Recorder({"a1": [Unavailable("a", retry_after=50_000)], "b1": [Unavailable("b")]})
    relay(engine, publisher, backoff=Backoff(first=100, longest=100))
    waits = _seconds_left(engine)
    assert 49_000 < waits["a1"] <= 50_000
    assert waits["b1"] <= 100
    assert relay(engine, publisher) == 0
    assert len(publisher.sent) == 2


def test_sent_messages_are_recorded_with_keep_sent(engine: Engine) -> None:
    """With `keep_sent`, a record of each sent message stays for that time, whatever the options of later
    relays are; any relay then deletes it. Without it there is none."""
    relay(engine, Recorder())
    first, second = publish(engine, "a1", "-2")
    publisher = Recorder({"a1": [Refused("no")]})
    publish(engine, "a3")
    relay(engine, publisher, keep_sent=3_600)
    with engine.connect() as connection:
        rows = {row.id: row for row in connection.execute(select(TABLES.sent))}
    assert first not in rows
    assert (rows[second].topic, rows[second].key) == ("orders", None)
    assert abs(rows[second].sent_at - rows[second].created_at) < timedelta(minutes=5)
    assert len(rows) == 2
    for options in ({"keep_sent": timedelta(hours=1)}, {"keep_sent": 0.001}, {}):
        relay(engine, publisher, **options)
        assert count(engine, TABLES.sent) == 2
    let_records_end(engine)
    relay(engine, publisher)
    assert count(engine, TABLES.sent) == 0


@on("mariadb", "mysql")
def test_a_database_with_wide_characters(migrated: Database) -> None:
    """Where the database's own character set has several bytes for each letter, what was sent is deleted,
    recorded, and its id is free again."""
    engine = migrated.engine()
    with engine.begin() as connection:
        connection.exec_driver_sql("ALTER DATABASE CHARACTER SET utf16")
        Outbox().publish(connection, "orders", b"a1", id="own")
    publish(engine, "b1")
    publisher = Recorder()
    assert relay(engine, publisher, keep_sent=3_600) == 2
    assert relay(engine, publisher) == 0
    assert (count(engine, TABLES.message), count(engine, TABLES.sent)) == (0, 2)
    let_records_end(engine)
    relay(engine, publisher)
    assert count(engine, TABLES.ids) == 0


@on("sqlite")
def test_the_publisher_is_asked_once_whether_it_is_safe(engine: Engine) -> None:
    """`check` is called with the lease, in seconds, before the first send of a relay, and never again."""
    calls: list[Any] = []

    class Checked(Recorder):
        def check(self, lease: float) -> None:
            calls.append(lease)

        def send(self, batch: Any) -> Any:
            calls.append(names_of(batch))
            return super().send(batch)

    once = Relay(engine, Checked(), lease=timedelta(seconds=12))
    assert calls == []
    publish(engine, "a1")
    once.run_once()
    publish(engine, "a2")
    once.run_once()
    assert calls == [12.0, ["a1"], ["a2"]]


@on("sqlite")
def test_a_relay_that_is_stopped_begins_no_other_batch(engine: Engine) -> None:
    """After `stop` the running batch is finished and recorded, and the other messages stay."""
    publish(engine, *(f"-{number}" for number in range(10)))

    def stop(_: Envelope) -> Accepted:
        stopped.stop()
        return ACCEPTED

    stopped = Relay(engine, Recorder(stop), batch=4)
    assert not stopped.stopped
    assert stopped.run_once() == 4
    assert stopped.stopped
    assert len(waiting(engine)) == 6
    assert count(engine, TABLES.relay) == 0


def _seconds_left(engine: Engine) -> dict[str, float]:
    now = datetime.now(UTC)
    return {name_of(row): (row.retry_at - now).total_seconds() for row in waiting(engine).values()}
