"""Redis Streams: our consumer and publisher, and redis-py alone."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from time import perf_counter, process_time
from typing import Any

from inbox import Delivery, Outcome
from inbox.redis_streams import RedisStreamsConsumer
from inbox_outbox_base.brokers.redis_streams.entry import fields_of
from outbox import Envelope
from outbox.redis_streams import RedisStreamsPublisher
from tests.support.brokers.redis_groups import GROUP, Streams

from ._brokers_lab import Count, Speed, grid, messages_of, rate_ratios, speed, speeds_of
from ._brokers_messages import BATCH, envelopes, send
from ._lab import Lab
from ._measure import Report, figure

_MOST = 100
_TARGET = 0.9


class Streaming:
    """A stream with one group."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self.publisher = RedisStreamsPublisher(streams.url, timeout=60)

    def new_topic(self, workers: int) -> str:
        """As `Broker.new_topic`."""
        return self._streams.new()

    def close(self) -> None:
        """Close the publisher."""
        self.publisher.close()

    def consumer(
        self, topic: str, workers: int, handler: Callable[[Delivery], Outcome]
    ) -> RedisStreamsConsumer:
        """As `Broker.consumer`."""
        return RedisStreamsConsumer(self._streams.url, topic, handler, group=GROUP, concurrency=workers)

    def consume_bare(self, topic: str, workers: int, work: Callable[[bytes], object], count: Count) -> None:
        """Each worker reads entries, and acknowledges each when it has handled it."""
        ended = threading.Event()
        count.on_end = ended.set
        client = self._streams.client

        def handle(number: int) -> None:
            try:
                while not ended.is_set():
                    answer = client.xreadgroup(
                        GROUP, f"bare-{number}", {topic: ">"}, count=_MOST, block=1_000
                    )
                    for entry, fields in answer[0][1] if answer else ():
                        work(fields[b"payload"])
                        client.xack(topic, GROUP, entry)
            finally:
                ended.set()

        with ThreadPoolExecutor(workers) as pool:
            for _ in pool.map(handle, range(workers)):
                pass


def publish_to_redis(lab: Lab, streams: Streams) -> Report:
    """Messages with a key each, as many in a transaction."""
    publisher, topic = RedisStreamsPublisher(streams.url, timeout=60), streams.new()
    turns = {
        "publisher": _turn(lab, topic, partial(send, publisher)),
        "bare client": _turn(lab, topic, partial(_send_bare, streams.client)),
    }
    speeds = speeds_of(lab, "Redis Streams", turns)
    found = rate_ratios(speeds, "publisher", "bare client")
    publisher.close()
    figures = [figure("Redis Streams: publisher / bare client", found, at_least=_TARGET)]
    return Report(figures, [grid("speed to Redis Streams", speeds)])


def _turn(lab: Lab, topic: str, send_all: Callable[[Sequence[Envelope]], None]) -> Callable[[], Speed]:
    def turn() -> Speed:
        messages = envelopes(topic, messages_of(lab))
        begun = perf_counter(), process_time()
        send_all(messages)
        return speed(len(messages), begun, (perf_counter(), process_time()))

    return turn


def _send_bare(client: Any, messages: Sequence[Envelope]) -> None:
    for start in range(0, len(messages), BATCH):
        with client.pipeline(transaction=True) as pipeline:
            for each in messages[start : start + BATCH]:
                pipeline.xadd(each.topic, fields_of(each, 1_000_000)[0], nomkstream=True)
            if None in pipeline.execute():
                raise AssertionError("there is no such stream")
