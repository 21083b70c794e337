"""Messages of one key are sent in their order, whatever happens to one of them; other keys go on."""

from datetime import UTC, datetime

import pytest
from sqlalchemy import Engine, delete, insert, text, update

from inbox import Backoff
from outbox import Envelope, Outbox, Outcome, Refused, Unavailable, Unknown
from tests.support.on_servers import on, spread
from tests.support.outbox_publishers import (
    ACCEPTED,
    TABLES,
    Recorder,
    dead,
    let_backoffs_end,
    messages,
    name_of,
    names_of,
    publish,
    relay,
    waiting,
)

MIXED = ["a1", "b1", "a2", "-1", "b2", "a3", "-2", "a4", "b3"]
OUTCOMES = [Refused("a"), Unavailable("b"), Unknown("c")]


def test_the_order_of_publishing(engine: Engine) -> None:
    """Every key's messages are sent in the order of publishing, within a transaction and across
    transactions."""
    keys = "abcdefghijklmnop"
    for number in range(10, 20):
        publish(engine, *(f"{key}{number}" for key in keys))
    publish(engine, *(f"{key}{number}" for number in range(20, 60) for key in keys))
    publisher = Recorder()
    assert relay(engine, publisher, batch=50) == 50 * len(keys)
    for key in keys:
        assert publisher.of(key) == [f"{key}{number}" for number in range(10, 60)]


@on("sqlite")
def test_no_two_messages_of_a_key_are_sent_together(engine: Engine) -> None:
    """No call of `send` gets two messages of one key, since a publisher may send a batch in any order;
    messages without a key may all go together."""
    publish(engine, *(["a1", "a2", "b1", "a3", "b2"] + [f"-{number}" for number in range(10)]) * 3)
    publisher = Recorder()
    assert relay(engine, publisher) == 45
    for batch in publisher.batches:
        keys = [message.key for message in batch if message.key is not None]
        assert len(keys) == len(set(keys))
    assert sum(message.key is None for message in publisher.batches[0]) == 30


@spread("outcome", OUTCOMES[1:])
def test_messages_behind_a_failed_one_wait(engine: Engine, outcome: Outcome) -> None:
    """Message 2 of a key fails: messages 3 and 4 of that key wait for it, while other keys and messages
    without a key go on. Message 2 is then sent again before them."""
    publish(engine, *MIXED)
    minute = Backoff(first=60)
    publisher = Recorder({"a2": [outcome, outcome]})
    assert relay(engine, publisher, backoff=minute) == 6
    assert list(waiting(engine)) == ["a2", "a3", "a4"]
    assert "a3" not in publisher.names
    publish(engine, "a5", "b4")
    assert relay(engine, publisher, backoff=minute) == 1
    let_backoffs_end(engine)
    assert relay(engine, publisher, backoff=minute) == 0
    let_backoffs_end(engine)
    assert relay(engine, publisher, backoff=minute) == 4
    assert [name for name in publisher.names if name[0] == "a"] == ["a1", "a2", "a2", "a2", "a3", "a4", "a5"]
    assert publisher.of("b") == ["b1", "b2", "b3", "b4"]


@on("sqlite")
def test_messages_behind_a_refused_one_wait_until_it_is_recorded(engine: Engine) -> None:
    """Message 2 of a key is refused: its dead letter is committed before message 3 is sent."""
    publish(engine, *MIXED)
    recorded: list[str] = []

    def answer(message: Envelope) -> Outcome:
        if name_of(message) == "a3":
            recorded.extend(dead(engine))
        return Refused("no") if name_of(message) == "a2" else ACCEPTED

    publisher = Recorder(answer)
    assert relay(engine, publisher) == 8
    assert recorded == ["a2"]
    assert publisher.of("a") == ["a1", "a3", "a4"]


@pytest.mark.parametrize("outcome", OUTCOMES, ids=["refused", "unavailable", "unknown"])
@on("sqlite")
def test_a_failure_without_a_key_stops_nothing(engine: Engine, outcome: Outcome) -> None:
    """Messages without a key do not wait for each other."""
    publish(engine, "-1", "-2", "a1", "-3")
    publisher = Recorder({"-1": [outcome]})
    assert relay(engine, publisher) == 3
    assert sorted(names_of(publisher.accepted)) == ["-2", "-3", "a1"]


@pytest.mark.quick("postgresql")
def test_many_messages_that_wait_stop_none_behind_them(engine: Engine) -> None:
    """Thousands of messages without a key wait in a bucket: the messages behind them in the same bucket are
    sent."""
    names = [f"-{number}" for number in range(3_000)]
    publish(engine, *names, topic="away")
    with engine.begin() as connection:
        connection.execute(update(TABLES.message).values(bucket=_bucket_of_z(engine)))
    publish(engine, "z1", "z2")

    def answer(message: Envelope) -> Outcome:
        return Unavailable("away") if message.topic == "away" else ACCEPTED

    _all_wait(engine)
    publisher = Recorder(answer)
    assert relay(engine, publisher) == 2
    assert publisher.names == ["z1", "z2"]
    let_backoffs_end(engine)
    publisher = Recorder()
    assert relay(engine, publisher) == 3_000
    assert sorted(publisher.names) == sorted(names)


def test_keys_that_wait_stop_none_behind_them(engine: Engine) -> None:
    """The same for thousands of messages that wait behind a failed one of their key."""
    publish(engine, "a1")
    relay(engine, Recorder({"a1": [Unavailable("away")]}), backoff=Backoff(3_600, longest=3_600))
    with engine.begin() as connection:
        Outbox().publish_many(connection, messages(f"a{number}" for number in range(2, 3_000)))
        Outbox().publish_many(connection, messages(["b1", "-1"]))
        connection.execute(update(TABLES.message).values(bucket=7))
    publisher = Recorder()
    assert relay(engine, publisher) == 2
    assert publisher.names == ["b1", "-1"]
    assert len(waiting(engine)) == 2_999


@spread("paused", ["orders", "*"])
def test_a_paused_topic_waits(engine: Engine, paused: str) -> None:
    """A row in outbox_pause holds back the messages of one topic, or of all, and no messages of the same key
    to other topics; when it is deleted, they are sent."""
    with engine.begin() as connection:
        connection.execute(insert(TABLES.pause).values(topic=paused))
    publish(engine, "a1", "a2")
    publish(engine, "a3", topic="invoices")
    publisher = Recorder()
    others = [] if paused == "*" else ["a3"]
    assert relay(engine, publisher) == len(others)
    assert publisher.names == others
    with engine.begin() as connection:
        connection.execute(delete(TABLES.pause))
    assert relay(engine, publisher) == 3 - len(others)
    assert publisher.names == [*others, *(name for name in ("a1", "a2", "a3") if name not in others)]


def _bucket_of_z(engine: Engine) -> int:
    (row_id,) = publish(engine, "z0")
    with engine.begin() as connection:
        found = connection.execute(
            text("SELECT bucket FROM outbox_message WHERE id = :id"), {"id": row_id}
        ).scalar_one()
        connection.execute(delete(TABLES.message).where(TABLES.message.c.id == row_id))
    return int(found)


def _all_wait(engine: Engine) -> None:
    later = datetime.now(UTC).replace(year=datetime.now(UTC).year + 1)
    changed = {"retry_at": later, "attempts": 1, "error": "away"}
    with engine.begin() as connection:
        connection.execute(update(TABLES.message).where(TABLES.message.c.topic == "away").values(changed))
