"""RocketMQ: our consumer, and the client's SimpleConsumer alone."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from inbox import Delivery, Outcome
from inbox.rocketmq import RocketMQConsumer
from inbox_outbox_base.brokers.rocketmq.client import grpc, rocketmq
from outbox.rocketmq import RocketMQPublisher
from tests.support.brokers.rocketmq_topics import Topics

from ._brokers_lab import Count

_PREFETCH = 32
_HIDDEN = 60
_LONG_POLL = 5
"""Seconds; RocketMQ waits no shorter."""


class Rocket:
    """A topic of the type NORMAL."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._url = f"rocketmq://{topics.address}"
        self.publisher = RocketMQPublisher(self._url)

    def new_topic(self, workers: int) -> str:
        """As `Broker.new_topic`; the group of its consumers has the same name."""
        topic = self._topics.new()
        return self._topics.group(name=topic)

    def close(self) -> None:
        """Close the publisher."""
        self.publisher.close()

    def consumer(self, topic: str, workers: int, handler: Callable[[Delivery], Outcome]) -> RocketMQConsumer:
        """As `Broker.consumer`."""
        return RocketMQConsumer(
            self._url, topic, handler, group=topic, prefetch=_PREFETCH, concurrency=workers
        )

    def consume_bare(self, topic: str, workers: int, work: Callable[[bytes], object], count: Count) -> None:
        """The workers share a consumer; each receives its share of the messages, and handles them."""
        ended = threading.Event()
        count.on_end = ended.set
        configuration = rocketmq.ClientConfiguration(
            self._topics.address, rocketmq.Credentials(), request_timeout=10
        )
        subscription = {topic: rocketmq.FilterExpression()}
        consumer = rocketmq.SimpleConsumer(configuration, topic, subscription, _LONG_POLL)
        consumer.startup()

        def handle(_: int) -> None:
            try:
                while not ended.is_set():
                    for message in _received(consumer, _PREFETCH // workers):
                        work(message.body)
                        consumer.ack(message)
            finally:
                ended.set()

        with ThreadPoolExecutor(workers) as pool:
            for _ in pool.map(handle, range(workers)):
                pass
        consumer.shutdown()


def _received(consumer: Any, most: int) -> list[Any]:
    try:
        found: list[Any] = consumer.receive(most, _HIDDEN)
    except (rocketmq.v5.exception.ClientException, grpc.RpcError):
        time.sleep(0.1)  # the server does not know the consumer before it has its settings
        return []
    return found
