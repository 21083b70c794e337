"""The cost of the brokers' consumers and publishers, as ratios of variants that ran side by side.

    python -m benchmarks.brokers [--quick | --tiny] [--only NAME] [--png FILE]

Runs on a private PostgreSQL with fsync on, and on brokers that the tests' classes start; one that is not
installed is left out. The exit code is 1 if a benchmark fails or a target is missed.
"""

import sys
from collections.abc import Sequence
from contextlib import closing

from tests import servers
from tests.support.brokers.kafka_topics import Topics as KafkaTopics
from tests.support.brokers.nats_streams import NatsStreams
from tests.support.brokers.rabbit_queues import Queues
from tests.support.brokers.redis_groups import Streams
from tests.support.brokers.rocketmq_topics import Topics as RocketTopics
from tests.support.brokers.sqs_queues import SQSQueues

from . import _command
from ._brokers_consume import consume
from ._brokers_import import importing
from ._brokers_kafka import Kafka
from ._brokers_lab import started
from ._brokers_nats import Stored, publish_to_nats
from ._brokers_publish import publish
from ._brokers_rabbitmq import Rabbit
from ._brokers_redis import Streaming, publish_to_redis
from ._brokers_rocketmq import Rocket
from ._brokers_sqs import Queueing, publish_to_sqs
from ._brokers_webhook import Hooking, publish_to_webhook
from ._lab import Lab
from ._measure import Report


def _kafka(lab: Lab) -> Report:
    with (
        started(servers.find_kafka) as found,
        KafkaTopics(found.address) as topics,
        closing(Kafka(topics)) as kafka,
    ):
        return consume(lab, "Kafka", kafka)


def _nats(lab: Lab) -> Report:
    with (
        started(servers.find_nats) as found,
        NatsStreams(found.url) as streams,
        closing(Stored(streams)) as stored,
    ):
        return consume(lab, "NATS", stored)


def _nats_publisher(lab: Lab) -> Report:
    with started(servers.find_nats) as found, NatsStreams(found.url) as streams:
        return publish_to_nats(lab, streams)


def _rabbitmq(lab: Lab) -> Report:
    with (
        started(servers.find_rabbit) as found,
        Queues(found.url) as queues,
        closing(Rabbit(queues)) as rabbit,
    ):
        return consume(lab, "RabbitMQ", rabbit)


def _rocketmq(lab: Lab) -> Report:
    with (
        started(servers.find_rocket) as found,
        RocketTopics(found.address, found.broker) as topics,
        closing(Rocket(topics)) as rocket,
    ):
        return consume(lab, "RocketMQ", rocket)


def _sqs(lab: Lab) -> Report:
    with (
        started(servers.find_elasticmq) as found,
        SQSQueues(found.url) as queues,
        closing(Queueing(queues)) as queueing,
    ):
        return consume(lab, "SQS", queueing)


def _sqs_publisher(lab: Lab) -> Report:
    with started(servers.find_elasticmq) as found, SQSQueues(found.url) as queues:
        return publish_to_sqs(lab, queues)


def _redis(lab: Lab) -> Report:
    with (
        started(servers.find_redis) as found,
        Streams(found.url) as streams,
        closing(Streaming(streams)) as streaming,
    ):
        return consume(lab, "Redis", streaming)


def _redis_publisher(lab: Lab) -> Report:
    with started(servers.find_redis) as found, Streams(found.url) as streams:
        return publish_to_redis(lab, streams)


def _webhook(lab: Lab) -> Report:
    return consume(lab, "webhooks", Hooking())


def _publisher(lab: Lab) -> Report:
    with started(servers.find_rocket) as found, RocketTopics(found.address, found.broker) as topics:
        return publish(lab, topics)


BENCHMARKS: _command.Benchmarks[Lab] = {
    "kafka": _kafka,
    "nats": _nats,
    "rabbitmq": _rabbitmq,
    "redis": _redis,
    "rocketmq": _rocketmq,
    "sqs": _sqs,
    "webhook": _webhook,
    "publisher": _publisher,
    "nats_publisher": _nats_publisher,
    "redis_publisher": _redis_publisher,
    "sqs_publisher": _sqs_publisher,
    "webhook_publisher": publish_to_webhook,
    "import": importing,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the chosen benchmarks, print and draw the results; return 1 if one fails or misses a target."""
    title = "Cost of consumers and publishers"
    return _command.run("brokers", __doc__, title, BENCHMARKS, arguments, often=(7, 5, 1))


if __name__ == "__main__":
    sys.exit(main())
