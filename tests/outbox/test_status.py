"""What operators see of the outbox on every database: counts, relays and messages."""

import pytest
from sqlalchemy import Engine, insert, text, update

import outbox
from outbox import MessageState, Outbox, OutboxStatus, Refused, Relay, Unavailable
from outbox.errors import InvalidOption, TablesMissing, WrongState
from tests.support.database import Database
from tests.support.on_servers import on
from tests.support.outbox_publishers import (
    TABLES,
    Recorder,
    due_unmoved,
    due_unsent,
    in_every_state,
    let_leases_end,
    publish,
    relay,
)

STATES = ("pending", "waiting", "unknown", "held", "delayed", "dead")


@pytest.fixture
def engine(migrated: Database) -> Engine:
    return migrated.engine()


def counts(found: OutboxStatus) -> dict[str, int]:
    return {state: getattr(found, state) for state in STATES}


@on("sqlite")
def test_an_empty_outbox(engine: Engine) -> None:
    """In an empty outbox all counts are zero, and there is no oldest message."""
    found = outbox.status(engine)
    assert set(counts(found).values()) == {0}
    assert (found.oldest_age, found.estimated, found.relays, found.paused) == (None, (), (), ())
    assert (found.buckets, found.unowned) == (64, 64)


def test_a_message_is_in_one_of_six_states(engine: Engine) -> None:
    """`status` counts each message once, by where it is and by the outcome of its last send."""
    in_every_state(engine)
    found = outbox.status(engine)
    assert counts(found) == {"pending": 3, "waiting": 1, "unknown": 1, "held": 1, "delayed": 1, "dead": 1}
    assert found.estimated == ()
    assert counts(outbox.status(engine, count_up_to=None)) == counts(found)


def test_beyond_a_number_messages_are_estimated(engine: Engine) -> None:
    """Messages beyond `count_up_to` are estimated and count as pending, and `status` says which counts are
    estimates; messages with failed sends are among the oldest, so they are still counted."""
    publish(engine, "w1")
    relay(engine, Recorder({"w1": [Unavailable("full", 3_600.0)]}))
    publish(engine, *(f"w{number}" for number in range(2, 300)), delay=0)
    publish(engine, *(f"d{number}" for number in range(100)), delay=3_600)
    analyse(engine)
    found = outbox.status(engine, count_up_to=64)
    assert found.estimated == ("pending", "waiting", "unknown", "held", "delayed")
    assert found.waiting == 1
    assert 200 <= found.pending <= 400
    assert 50 <= found.delayed <= 200


@on("sqlite")
def test_counts_are_exact_up_to_a_number(engine: Engine) -> None:
    """Counts up to `count_up_to` are exact wherever the messages are, even if all have one key and so one
    bucket. If there are more, the estimate is not lower than the real count."""
    publish(engine, *("a" * length for length in range(1, 151)))
    found = outbox.status(engine, count_up_to=150)
    assert (found.pending, found.estimated) == (150, ())
    found = outbox.status(engine, count_up_to=149)
    assert found.pending >= 150
    assert found.estimated == ("pending", "waiting", "unknown", "held")


def analyse(engine: Engine) -> None:
    """Update the database's statistics about the number of rows."""
    table = "TABLE " if engine.dialect.name in ("mysql", "mariadb") else ""
    with engine.begin() as connection:
        for name in (TABLES.message.name, TABLES.delayed.name):
            connection.execute(text(f"ANALYZE {table}{name}"))


@on("sqlite")
def test_the_oldest_message(engine: Engine) -> None:
    """The age is that of the oldest message that will be sent without an operator."""
    publish(engine, "h1")
    relay(engine, Recorder({"h1": [Refused("no")]}), after_dead="hold")
    assert outbox.status(engine).oldest_age is None
    publish(engine, "h2", "a1")
    age = outbox.status(engine).oldest_age
    assert age is not None
    assert 0 <= age < 300


def test_a_message_that_is_due_and_that_no_relay_moves(engine: Engine) -> None:
    """The oldest age is also that of a delayed message that is due: without a relay, nothing moves it."""
    publish(engine, "a1", delay=3_600)
    assert outbox.status(engine).oldest_age is None
    due_unmoved(engine, "a2", hours=24, ago=0.5)
    for each in (None, 1):
        found = outbox.status(engine, count_up_to=each)
        assert found.delayed == 2
        assert found.oldest_age is not None
        assert 1_800 <= found.oldest_age < 3_600


def test_a_message_that_was_delayed_and_is_due(engine: Engine) -> None:
    """A delayed message that is due is pending like any other, and its age counts from its due time."""
    due_unsent(engine, "a1", hours=24, ago=0.5)
    found = outbox.status(engine)
    assert (found.pending, found.waiting) == (1, 0)
    assert found.oldest_age is not None
    assert 1_800 <= found.oldest_age < 3_600
    (shown,) = outbox.peek(engine, state="pending")
    assert shown.retry_at is None
    assert outbox.peek(engine, state="waiting") == []
    assert outbox.retry_all(engine, "waiting") == 0
    with pytest.raises(WrongState, match="state is pending"):
        outbox.retry(engine, shown.id)


def test_relays_at_work(engine: Engine) -> None:
    """`status` names each relay with its buckets, the rest of its lease, and how many messages it is sending;
    the rest is negative for a relay that is lost."""
    seen: list[OutboxStatus] = []

    class Looking(Recorder):
        def send(self, batch):  # type: ignore[no-untyped-def]
            seen.append(outbox.status(engine))
            let_leases_end(engine)
            seen.append(outbox.status(engine))
            return super().send(batch)

    publish(engine, "a1", "b1", "c1")
    Relay(engine, Looking(), name="one", lease=20).run_once()
    (alive,), (lost,) = seen[0].relays, seen[1].relays
    assert (alive.name, alive.buckets, alive.sending, seen[0].unowned) == ("one", 64, 3, 0)
    assert 0 < alive.lease_left <= 20
    assert (lost.lease_left < 0, seen[1].unowned) == (True, 64)
    assert outbox.status(engine).relays == ()


@on("sqlite")
def test_peek_shows_the_next_messages(engine: Engine) -> None:
    """`peek` returns the oldest messages first, changes nothing, and leaves out delayed and dead ones."""
    in_every_state(engine)
    shown = outbox.peek(engine)
    assert [(each.key, each.state) for each in shown] == [
        ("w", "waiting"),
        ("w", "pending"),
        ("u", "unknown"),
        ("u", "pending"),
        ("h", "held"),
        ("h", "pending"),
    ]
    assert outbox.peek(engine) == shown
    assert outbox.peek(engine, 2) == shown[:2]


def test_what_is_shown_of_a_message(engine: Engine) -> None:
    """A message is shown with its headers, the length of its payload in bytes, its attempts, its error, and
    the time of its next attempt."""
    payload = "ü" * 10
    with engine.begin() as connection:
        made = Outbox(trace=False).publish(connection, "orders", payload, key="w", headers={"a": "ä"})
    relay(engine, Recorder(lambda _: Unavailable("full", 3_600.0)))
    (shown,) = outbox.peek(engine)
    assert (shown.id, shown.topic, shown.key) == (made, "orders", "w")
    assert (shown.payload_bytes, shown.headers) == (20, {"a": "ä"})
    assert shown.content_type == "text/plain; charset=utf-8"
    assert (shown.attempts, shown.error) == (1, "full")
    assert shown.retry_at is not None
    assert shown.retry_at > shown.created_at
    assert (shown.available_at, shown.dead_at) == (None, None)


@on("sqlite")
def test_peek_by_state(engine: Engine) -> None:
    """`peek` can select one state, by its name or its member."""
    in_every_state(engine)
    for state in STATES:
        shown = outbox.peek(engine, state=state)
        assert {each.state.value for each in shown} == {state}
        assert len(shown) == getattr(outbox.status(engine), state)
        assert outbox.peek(engine, state=MessageState(state)) == shown
        assert (shown[0].dead_at is not None) == (state == "dead")
        assert (shown[0].available_at is not None) == (state == "delayed")


def test_peek_by_topic_and_key(engine: Engine) -> None:
    """`peek` can select by topic and by key, compared byte for byte, in every state."""
    publish(engine, "a1", "A1", "-1", topic="mail")
    publish(engine, "a2", "b2")
    publish(engine, "a3", "b3", delay=3_600)
    assert [each.key for each in outbox.peek(engine, topic="mail")] == ["a", "A", None]
    assert [each.topic for each in outbox.peek(engine, key="a")] == ["mail", "orders"]
    assert [each.topic for each in outbox.peek(engine, key="a", topic="mail")] == ["mail"]
    assert [each.key for each in outbox.peek(engine, key="b", state="delayed")] == ["b"]
    assert outbox.peek(engine, key="c") == []


def test_a_drained_outbox(engine: Engine) -> None:
    """The outbox is drained when every message left is held, behind a held message of its key, paused, or
    delayed."""
    assert outbox.is_drained(engine)
    publish(engine, "h1", "h2")
    assert not outbox.is_drained(engine)
    relay(engine, Recorder({"h1": [Refused("no")]}), after_dead="hold")
    publish(engine, "d1", delay=3_600)
    assert outbox.is_drained(engine)
    publish(engine, "p1", topic="paused")
    publish(engine, "-1", topic="paused")
    assert not outbox.is_drained(engine)
    outbox.pause(engine, "paused")
    assert outbox.is_drained(engine)
    publish(engine, "a1")
    assert not outbox.is_drained(engine)
    outbox.pause(engine)
    assert outbox.is_drained(engine)


def test_before_a_held_message(engine: Engine) -> None:
    """A message that a held one of its key does not precede can be sent."""
    outbox.pause(engine, "paused")
    publish(engine, "a1", topic="paused")
    publish(engine, "a2")
    relay(engine, Recorder({"a2": [Refused("no")]}), after_dead="hold")
    assert outbox.is_drained(engine)
    outbox.resume(engine, "paused")
    assert not outbox.is_drained(engine)


@on("sqlite")
def test_an_outbox_with_a_due_message_is_not_drained(engine: Engine) -> None:
    """An outbox with a delayed message that is due is not drained, even if no relay has moved the message
    yet."""
    row = {"id": "1", "bucket": 0, "topic": "orders", "payload": b"", "content_type": "text/plain"}
    due = {"available_at": outbox_time(engine)}
    with engine.begin() as connection:
        connection.execute(insert(TABLES.delayed), [row | due])
    assert not outbox.is_drained(engine)


def outbox_time(engine: Engine) -> object:
    """The creation time of a message that is published now."""
    publish(engine, "t1")
    created = outbox.peek(engine)[0].created_at
    relay(engine, Recorder())
    return created


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"limit": 0}, "limit=0: expected a whole number"),
        ({"topic": ""}, "topic='': 0 bytes"),
        ({"key": "\0"}, "NUL"),
        ({"state": "lost"}, "state='lost': expected one of pending"),
    ],
)
def test_wrong_options_of_peek(options: dict[str, object], said: str) -> None:
    """An invalid option of `peek` is rejected by name, before any query."""
    with pytest.raises(InvalidOption, match=said):
        outbox.peek(no_engine(), **options)  # type: ignore[arg-type]


def test_wrong_options_of_status() -> None:
    """An invalid option of `status` is rejected by name, before any query."""
    with pytest.raises(InvalidOption, match="count_up_to=0"):
        outbox.status(no_engine(), count_up_to=0)
    with pytest.raises(InvalidOption, match="engine=NoneType: expected an Engine"):
        outbox.status(no_engine())


def no_engine() -> Engine:
    """An invalid engine, for calls that must not use it."""
    return None  # type: ignore[return-value]


@on("sqlite")
def test_without_tables(database: Database) -> None:
    """If the tables are missing, the error names the command that creates them."""
    for look in (outbox.status, outbox.peek, outbox.is_drained):
        with pytest.raises(TablesMissing, match="inbox-outbox migrate"):
            look(database.engine())


@on("sqlite")
def test_messages_in_buckets_that_do_not_exist(engine: Engine) -> None:
    """Messages in buckets that do not exist are counted, waiting and delayed ones. As long as one waits, the
    outbox is not drained. A relay takes them in, delayed ones when they are due."""
    publish(engine, "a1", "b1", "c1")
    publish(engine, "d1", delay=3_600)
    with engine.begin() as connection:
        for table, bucket, name in (
            (TABLES.message, 99, b"a1"),
            (TABLES.message, -1, b"b1"),
            (TABLES.delayed, 64, b"d1"),
        ):
            connection.execute(update(table).where(table.c.payload == name).values(bucket=bucket))
    assert outbox.status(engine).stray == 3
    assert not outbox.is_drained(engine)
    assert relay(engine, Recorder()) == 3
    found = outbox.status(engine)
    assert (found.stray, found.pending, found.delayed) == (1, 0, 1)
    assert outbox.is_drained(engine)
