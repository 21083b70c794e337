"""What the consumers of RabbitMQ and Kafka log."""

import logging
from typing import Any

import pytest

from inbox import Outcome, Verdict
from inbox._consuming import journal
from outbox import Accepted
from outbox.kafka import KafkaPublisher
from outbox.rabbitmq import RabbitPublisher
from tests.support.answers import published
from tests.support.brokers.consumers import running
from tests.support.brokers.kafka_consumers import consumer
from tests.support.brokers.kafka_topics import Topics
from tests.support.brokers.kafka_topics import envelope as kafka_envelope
from tests.support.brokers.rabbit_consumers import consuming
from tests.support.brokers.rabbit_queues import Queues, envelope
from tests.support.processes import wait_until

pytest_plugins = ["tests.support.brokers.kafka_fixtures", "tests.support.brokers.rabbit_fixtures"]


def take(_: Any) -> Outcome:
    return Outcome(Verdict.NEW)


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno == logging.INFO]


def acknowledged(caplog: pytest.LogCaptureFixture) -> int:
    """The sum of acknowledged messages in the logged summaries."""
    numbers = (line.partition("in the last minute: ")[2].partition(" acknowledged") for line in said(caplog))
    return sum(int(number) for number, found, _ in numbers if found)


@pytest.fixture(autouse=True)
def short_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "MINUTE", 0.2)


def test_rabbitmq(queues: Queues, caplog: pytest.LogCaptureFixture) -> None:
    """The consumer logs a line when it starts, connects and stops, and a summary of each minute with
    activity, without the password."""
    queue = queues.new()
    publisher = RabbitPublisher(queues.url)
    with caplog.at_level(logging.INFO, "inbox.rabbitmq"), consuming(queues.url, queue, take):
        assert published(publisher, [envelope(queue, "a"), envelope(queue, "b")]) == [Accepted()] * 2
        wait_until(lambda: acknowledged(caplog) == 2)
    publisher.close()
    name = f"consumer of queue {queue!r}"
    lines = [line.removeprefix(f"{name} ") for line in said(caplog) if line.startswith(name)]
    assert lines[0].startswith("starts: at amqp://")
    assert lines[1] == "is connected, and prefetches up to 2 messages"
    assert lines[-1] == "has stopped"
    assert ":guest" not in caplog.text


def test_kafka(topics: Topics, caplog: pytest.LogCaptureFixture) -> None:
    """The consumer logs the same lines, and its partitions."""
    topic = topics.new()
    publisher = KafkaPublisher({"bootstrap.servers": topics.address})
    assert published(publisher, [kafka_envelope(topic, "a", "1")]) == [Accepted()]
    publisher.close()
    with caplog.at_level(logging.INFO, "inbox.kafka"), running(consumer(topics.address, topic, take)):
        wait_until(lambda: acknowledged(caplog) == 1)
    name = f"consumer of {topic}"
    lines = [line.removeprefix(f"{name} ") for line in said(caplog) if line.startswith(name)]
    assert lines[0] == f"starts: group 'payments' at {topics.address}"
    assert lines[1] == f"is connected, and has partitions {topic} [0]"
    assert "in the last minute: 1 acknowledged" in lines
    assert lines[-1] == "has stopped"
