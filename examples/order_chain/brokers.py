"""The brokers that the chain can run over: one that is there, or one of this program's own."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from examples.order_chain.transport import Brokered
from tests.servers.server import Missing

T = TypeVar("T")

EXPECTED = (
    "rabbitmq, kafka, nats, redis, rocketmq, sqs, webhook, amqp://user:password@host/vhost or "
    "kafka://host:9092"
)


@contextmanager
def transport_over(given: str) -> Iterator[Brokered]:
    """The transport over a broker: its URL, or the name of one that is started here, killed with the others,
    and removed at the end.

    Raises:
        RuntimeError: there is no such broker, or it is not installed.
        InboxError: the URL is invalid.
        ModuleNotFoundError: its client is not installed.
    """
    scheme, separator, address = given.partition("://")
    if given in _OWN:
        with _OWN[given]() as transport:
            yield transport
    elif given == "webhook":
        yield _over_webhooks()
    elif scheme in ("amqp", "amqps") and separator:
        yield _over_rabbit(given)
    elif scheme == "kafka" and address:
        yield _over_kafka(address.rstrip("/"))
    else:
        raise RuntimeError(f"--broker: expected {EXPECTED}")


@contextmanager
def _own_rabbit() -> Iterator[Brokered]:
    from tests.servers import rabbitmq

    _installed(rabbitmq.program())
    server = rabbitmq.start_local()
    try:
        yield _over_rabbit(server.url, server.restart)
    finally:
        server.stop()


@contextmanager
def _own_kafka() -> Iterator[Brokered]:
    from tests.servers import kafka

    server = kafka.LocalKafka(_installed(kafka.program()))
    try:
        yield _over_kafka(server.address, server.restart)
    finally:
        server.stop()


@contextmanager
def _own_nats() -> Iterator[Brokered]:
    from examples.order_chain.nats import Nats  # needs the extra `nats`
    from tests.servers import nats

    server = nats.LocalNats(_installed(nats.program()))
    try:
        yield Brokered("NATS", Nats(server.url), server.restart)
    finally:
        server.stop()


@contextmanager
def _own_rocket() -> Iterator[Brokered]:
    from examples.order_chain.rocket import Rocket  # needs the extra `rocketmq`
    from tests.servers import rocketmq

    server = rocketmq.LocalRocket(_installed(rocketmq.program()))
    try:
        yield Brokered("RocketMQ", Rocket(server.address, server.broker), server.restart)
    finally:
        server.stop()


@contextmanager
def _own_sqs() -> Iterator[Brokered]:
    from examples.order_chain.sqs import SQS  # needs the extra `sqs`
    from tests.servers import elasticmq

    server = elasticmq.LocalElasticMQ(_installed(elasticmq.program()), on_disk=True)
    try:
        yield Brokered("SQS", SQS(server.url), server.restart)
    finally:
        server.stop()


@contextmanager
def _own_redis() -> Iterator[Brokered]:
    from examples.order_chain.redis_streams import RedisStreams  # needs the extra `redis`
    from tests.servers import redis

    server = redis.LocalRedis(_installed(redis.program()))
    try:
        yield Brokered("Redis", RedisStreams(server.url), server.restart)
    finally:
        server.stop()


_OWN = {
    "kafka": _own_kafka,
    "nats": _own_nats,
    "rabbitmq": _own_rabbit,
    "redis": _own_redis,
    "rocketmq": _own_rocket,
    "sqs": _own_sqs,
}


def _installed(found: T | Missing) -> T:
    if isinstance(found, Missing):
        raise RuntimeError(found.reason)  # noqa: TRY004 - not a wrong type
    return found


def _over_webhooks() -> Brokered:
    from examples.order_chain.hooks import Hooks  # needs the extras `webhook` and `web`

    return Brokered("webhooks", Hooks())


def _over_rabbit(url: str, restart: Callable[[], object] | None = None) -> Brokered:
    from examples.order_chain.rabbit import Rabbit  # needs the extra `rabbitmq`

    logging.getLogger("aiormq").setLevel(logging.CRITICAL)  # its exceptions say the same
    broker = Rabbit(url)
    broker.publisher()  # rejects an invalid URL
    return Brokered("RabbitMQ", broker, restart)


def _over_kafka(address: str, restart: Callable[[], object] | None = None) -> Brokered:
    from examples.order_chain.kafka import Kafka  # needs the extra `kafka`

    return Brokered("Kafka", Kafka(address), restart)
