"""What a KafkaPublisher sends to Kafka, and the outcome it reports for each message."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from confluent_kafka import KafkaException

from inbox._consuming.kafka.record import delivery_of
from outbox import Accepted, AsyncPublisher, Envelope, Unavailable
from outbox.errors import InvalidOption, UnsafeBroker
from outbox.kafka import AsyncKafkaPublisher, KafkaPublisher
from tests.support.answers import published, published_awaited
from tests.support.brokers.kafka_topics import Topics, envelope, values, wait_until

pytest_plugins = ["tests.support.brokers.kafka_fixtures"]

LEASE = 30
NOWHERE = {"bootstrap.servers": "127.0.0.1:1"}


def publisher(topics: Topics, **settings: Any) -> KafkaPublisher:
    """A publisher; the settings have underscores instead of dots."""
    config = {name.replace("_", "."): value for name, value in settings.items()}
    return KafkaPublisher({"bootstrap.servers": topics.address, **config})


def test_what_is_written(topics: Topics) -> None:
    """An accepted message is in the topic, with its key, its payload byte for byte, its id, its content type,
    the time of publishing, and the user's headers unchanged."""
    topic, created = topics.new(), datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
    message = Envelope(
        id="018f-id",
        topic=topic,
        key="Größe 1",
        payload=b"\x00\xff{}",
        content_type="application/json",
        headers={"ce_type": "order.paid", "traceparent": "00-ab-cd-01", "note": "größer"},
        attempt=3,
        created_at=created,
    )
    assert published(publisher(topics), [message]) == [Accepted()]
    (record,) = topics.log(topic)
    assert (record.key(), record.value()) == ("Größe 1".encode(), b"\x00\xff{}")
    assert dict(record.headers() or []) == {
        "outbox-id": b"018f-id",
        "content-type": b"application/json",
        "outbox-created-at": created.isoformat().encode(),
        "ce_type": b"order.paid",
        "traceparent": b"00-ab-cd-01",
        "note": "größer".encode(),
    }


def test_tombstones(topics: Topics) -> None:
    """A message without a payload has the value null, which deletes its key from a compacted topic. An empty
    payload does not. A consumer sees the same difference."""
    topic = topics.new()
    batch = [envelope(topic, "", "a"), envelope(topic, "", "a")]
    batch[0] = replace(batch[0], payload=None, content_type="")
    assert published(publisher(topics), batch) == [Accepted()] * 2
    records = topics.log(topic)
    assert [record.value() for record in records] == [None, b""]
    assert "content-type" not in dict(records[0].headers() or [])
    told = [delivery_of(record, attempt=1) for record in records]
    assert [(each.payload, each.content_type) for each in told] == [(None, ""), (b"", "text/plain")]
    assert [each.id for each in told] == [each.id for each in batch]


def test_a_waiting_message_is_not_old(topics: Topics) -> None:
    """A message that was published long ago counts as new for the topic's retention."""
    topic = topics.new()
    before = datetime.now(UTC)
    published(publisher(topics), [envelope(topic, "a", created_at=before - timedelta(days=900))])
    (record,) = topics.log(topic)
    assert record.timestamp()[1] >= int(before.timestamp() * 1_000)


def test_a_missing_topic_is_made(topics: Topics) -> None:
    """Once a missing topic is created, the same publisher writes to it."""
    sender = publisher(topics, topic_metadata_propagation_max_ms=500)
    first = topics.new()
    missing = [envelope(f"{first}-later", "a")]
    assert [type(each) for each in published(sender, missing)] == [Unavailable]
    topics.make(f"{first}-later")
    wait_until(lambda: published(sender, missing) == [Accepted()])
    assert values(topics.log(f"{first}-later")) == ["a"]


def test_from_an_event_loop(topics: Topics) -> None:
    """The asynchronous publisher reports and writes the same. A cancelled send ends first, and nothing of it
    is sent later."""
    topic = topics.new()

    async def scenario() -> None:
        sender = AsyncKafkaPublisher({"bootstrap.servers": topics.address})
        assert isinstance(sender, AsyncPublisher)
        await sender.check(LEASE)
        assert (
            await published_awaited(sender, [envelope(topic, "a"), envelope(topic, "b")]) == [Accepted()] * 2
        )
        batch = [envelope(topic, f"{number}", "key") for number in range(10_000)]
        cancelled = asyncio.create_task(published_awaited(sender, batch))
        await asyncio.sleep(0.02)
        cancelled.cancel()
        await asyncio.wait([cancelled])
        assert cancelled.cancelled()
        written = values(topics.log(topic))[2:]
        assert written == [f"{number}" for number in range(len(written))]
        assert len(written) < len(batch)
        assert await published_awaited(sender, [envelope(topic, "c")]) == [Accepted()]
        assert values(topics.log(topic))[2:] == [*written, "c"]
        await sender.close()

    asyncio.run(scenario())


def test_a_caller_that_stops(topics: Topics) -> None:
    """Once the iterator is closed, no more messages of the batch are sent."""
    topic, sender = topics.new(), publisher(topics, batch_num_messages=10)
    answers = sender.send([envelope(topic, f"{number}", "key") for number in range(100)])
    assert next(answers) == (0, Accepted())
    answers.close()
    assert published(sender, [envelope(topic, "after")]) == [Accepted()]
    assert values(topics.log(topic)) == [*map(str, range(10)), "after"]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"acks": "all"},
        {"acks": -1},
        {"request.required.acks": "-1"},
        {"enable.idempotence": "true"},
        {"enable.idempotence": False, "max.in.flight": 1},
        {"enable.idempotence": "false", "max.in.flight.requests.per.connection": "1"},
        {"linger.ms": 5},
        {"message.timeout.ms": 0},
        {"partitioner": "murmur2_random"},
    ],
    ids=str,
)
def test_settings_that_keep_the_promise(settings: dict[str, Any]) -> None:
    """A relay starts with safe settings, even if no broker answers."""
    KafkaPublisher({**NOWHERE, **settings}).check(LEASE)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"acks": 1}, "acks=1"),
        ({"acks": "0"}, "acks='0'"),
        ({"request.required.acks": 1}, "acks=1"),
        ({"default.topic.config": {"acks": 1}}, "acks=1"),
        ({"enable.idempotence": False}, "enable.idempotence=False"),
        ({"enable.idempotence": "false", "max.in.flight": 5}, "enable.idempotence='false'"),
        ({"message.timeout.ms": 30_000}, "message.timeout.ms=30000"),
        ({"delivery.timeout.ms": 120_000}, "message.timeout.ms=120000"),
        ({"message.timeout.ms": "abc"}, "message.timeout.ms='abc'"),
        ({"delivery.report.only.error": True}, "delivery.report.only.error=True"),
        ({"partitioner": "random"}, "partitioner='random'"),
        ({"transactional.id": "relay"}, "transactional.id='relay'"),
    ],
    ids=str,
)
def test_settings_that_break_the_promise(settings: dict[str, Any], named: str) -> None:
    """Unsafe settings are rejected at the start, with the setting's name and value."""
    with pytest.raises(UnsafeBroker, match=named):
        KafkaPublisher({**NOWHERE, **settings}).check(LEASE)


def test_settings_that_the_client_does_not_know() -> None:
    """Settings that the client does not know raise an error when the relay starts, not when it sends."""
    with pytest.raises(KafkaException, match="lingering"):
        KafkaPublisher({**NOWHERE, "lingering.ms": 1}).check(LEASE)


def test_the_time_limit() -> None:
    """The time limit may be a timedelta. An invalid one is rejected."""
    assert KafkaPublisher(NOWHERE, timeout=timedelta(seconds=3)).timeout == 3
    with pytest.raises(InvalidOption, match="timeout="):
        KafkaPublisher(NOWHERE, timeout=-1)
