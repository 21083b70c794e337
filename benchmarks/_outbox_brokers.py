"""A relay's rate with a real broker, against a bare client that sends the same rows and waits for the same
answers."""

from contextlib import closing
from time import perf_counter

from sqlalchemy import Engine, create_engine

from outbox import Publisher, Relay
from outbox.kafka import KafkaPublisher
from outbox.rabbitmq import RabbitPublisher
from tests import servers
from tests.support.brokers.kafka_topics import Topics
from tests.support.brokers.rabbit_queues import Queues

from ._brokers_lab import started
from ._lab import run_alone
from ._measure import Report, figure, ratios
from ._outbox_bare import Bare, BareKafka, BareRabbit
from ._outbox_lab import OutboxLab, settle
from ._outbox_relay import grid, rates_of
from ._outbox_rows import TOPIC, fill, fill_keys

_PARTITIONS = 3
_KAFKA = {1: 0.5, 10_000: 0.6, None: 0.6}
_RABBITMQ = {10_000: 0.6, None: 0.6}
"""The targets, by the number of keys."""


def kafka(lab: OutboxLab) -> Report:
    """With one key, with many, and with none."""
    report = Report()
    with started(servers.find_kafka) as found, Topics(found.address) as topics:
        topics.make(TOPIC, _PARTITIONS)
        bare = BareKafka(found.address)
        with closing(KafkaPublisher({"bootstrap.servers": found.address})) as publisher:
            for keys, target in _KAFKA.items():
                _compare(lab, "Kafka", publisher, bare, keys, target, report)
    return report


def rabbitmq(lab: OutboxLab) -> Report:
    """With many keys, and with none."""
    report = Report()
    with started(servers.find_rabbit) as found, Queues(found.url) as queues:
        queues.make(TOPIC)
        with closing(RabbitPublisher(found.url)) as publisher:
            for keys, target in _RABBITMQ.items():
                _compare(lab, "RabbitMQ", publisher, BareRabbit(found.url), keys, target, report)
    return report


def _compare(
    lab: OutboxLab,
    broker: str,
    publisher: Publisher,
    bare: Bare,
    keys: int | None,
    target: float,
    report: Report,
) -> None:
    messages = lab.sizes.relayed // 4
    kind = "no key" if keys is None else "one key" if keys == 1 else f"{keys:,} keys"
    with lab.outbox(f"{broker.lower()}_{keys or 0}") as engine:

        def prepare(_: str) -> None:
            run_alone(engine, "TRUNCATE outbox_message")
            with engine.begin() as connection:
                if keys is None:
                    fill(connection, messages, has_keys=False)
                else:
                    fill_keys(connection, keys, messages)
            settle(engine)

        turns = {
            "relay": lambda: _relay(engine, publisher, messages),
            "bare client": lambda: bare.send(engine.url, messages, deletes=False),
            "bare client that deletes": lambda: bare.send(engine.url, messages, deletes=True),
        }
        title = f"{broker}, {kind}"
        rates = rates_of(lab, title, turns, prepare, messages, (7, 3))
    base, loop = (ratios(rates, "relay", name) for name in list(turns)[1:])
    report.figures += [
        figure(f"{title}: relay / bare client", base, at_least=target),
        figure(f"{title}: relay / bare client that deletes", loop),
    ]
    report.grids.append(grid(f"messages/s to {title}, {messages:,} messages", rates))


def _relay(engine: Engine, publisher: Publisher, messages: int) -> float:
    own = create_engine(engine.url)
    begun = perf_counter()
    relayed = Relay(own, publisher).run_once()
    seconds = perf_counter() - begun
    own.dispose()
    if relayed != messages:
        raise AssertionError(f"{relayed} of {messages} messages were relayed")
    return seconds
