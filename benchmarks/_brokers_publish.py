"""RocketMQ's publisher, against the client's own producer."""

from collections.abc import Callable, Sequence
from functools import partial
from threading import Semaphore
from time import perf_counter, process_time
from typing import Any

from inbox_outbox_base.brokers.rocketmq.client import rocketmq
from outbox import Envelope
from outbox.rocketmq import RocketMQPublisher
from tests.support.brokers.rocketmq_topics import Topics

from ._brokers_lab import Speed, grid, messages_of, rate_ratios, speed, speeds_of
from ._brokers_messages import BATCH, envelopes, send
from ._lab import Lab
from ._measure import Report, figure

_KINDS = ("NORMAL", "FIFO")
_TARGET = 0.6
_IN_FLIGHT = 100
"""As many as the publisher's."""


def publish(lab: Lab, topics: Topics) -> Report:
    """To both kinds of topics, messages with a key each."""
    report = Report()
    publisher = RocketMQPublisher(f"rocketmq://{topics.address}")
    configuration = rocketmq.ClientConfiguration(topics.address, rocketmq.Credentials(), request_timeout=10)
    for kind in _KINDS:
        topic = topics.new(kind)
        producer = rocketmq.Producer(configuration, (topic,))
        producer.startup()
        turns = {
            "publisher": _turn(lab, topic, partial(send, publisher)),
            "bare client": _turn(lab, topic, partial(_send_bare, producer, kind)),
        }
        title = f"RocketMQ, a {kind} topic"
        speeds = speeds_of(lab, title, turns)
        producer.shutdown()
        found = rate_ratios(speeds, "publisher", "bare client")
        report.figures.append(figure(f"{title}: publisher / bare client", found, at_least=_TARGET))
        report.grids.append(grid(f"speed to {title}", speeds))
    publisher.close()
    return report


def _turn(lab: Lab, topic: str, send_all: Callable[[Sequence[Envelope]], None]) -> Callable[[], Speed]:
    def turn() -> Speed:
        messages = envelopes(topic, messages_of(lab))
        begun = perf_counter(), process_time()
        send_all(messages)
        return speed(len(messages), begun, (perf_counter(), process_time()))

    return turn


def _send_bare(producer: Any, kind: str, messages: Sequence[Envelope]) -> None:
    room = Semaphore(_IN_FLIGHT)
    for start in range(0, len(messages), BATCH):
        answers = list[Any]()
        for envelope in messages[start : start + BATCH]:
            room.acquire()
            answer = producer.send_async(_message(envelope, kind))
            answer.add_done_callback(lambda _: room.release())
            answers.append(answer)
        for answer in answers:
            answer.result()


def _message(envelope: Envelope, kind: str) -> Any:
    """As the publisher sends it."""
    message = rocketmq.Message()
    message.topic, message.body, message.keys = envelope.topic, envelope.payload, envelope.id
    for name, value in (
        ("outbox-id", envelope.id),
        ("outbox-key", envelope.key),
        ("content-type", envelope.content_type),
        ("outbox-created-at", envelope.created_at.isoformat()),
    ):
        message.add_property(name, value)
    if kind == "FIFO":
        message.message_group = envelope.key
    return message
