"""NATS JetStream: our consumer and publisher, and nats-py alone."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from time import perf_counter, process_time
from typing import Any

import nats
from nats.aio.msg import Msg

from inbox import Delivery, Outcome
from inbox.nats import NatsConsumer
from outbox import Envelope
from outbox._publishers.loop_thread import LoopThread
from outbox.nats import NatsPublisher
from tests.support.brokers.nats_streams import NatsStreams

from ._brokers_lab import Count, Speed, grid, messages_of, rate_ratios, speed, speeds_of
from ._brokers_messages import BATCH, envelopes, send
from ._lab import Lab
from ._measure import Report, figure

_PREFETCH = 32
_TARGET = 0.85


class Stored:
    """A stream on the disk."""

    def __init__(self, streams: NatsStreams) -> None:
        self._streams = streams
        self.publisher = NatsPublisher(streams.url, timeout=60)

    def new_topic(self, workers: int) -> str:
        """As `Broker.new_topic`."""
        return self._streams.new()

    def close(self) -> None:
        """Close the publisher."""
        self.publisher.close()

    def consumer(self, topic: str, workers: int, handler: Callable[[Delivery], Outcome]) -> NatsConsumer:
        """As `Broker.consumer`."""
        return NatsConsumer(
            self._streams.url,
            topic,
            handler,
            durable="benchmark",
            prefetch=_PREFETCH,
            concurrency=workers,
            dead_letter=lambda *_: None,
        )

    def consume_bare(self, topic: str, workers: int, work: Callable[[bytes], object], count: Count) -> None:
        """Each worker has a thread, because the work blocks; acknowledgements are not confirmed."""
        with ThreadPoolExecutor(workers) as threads:
            asyncio.run(self._consume(topic, workers, partial(_in_thread, threads, work), count))

    async def _consume(
        self, topic: str, workers: int, work: Callable[[bytes], asyncio.Future[object]], count: Count
    ) -> None:
        ended, arrived = asyncio.Event(), asyncio.Queue[Msg](_PREFETCH)
        count.on_end = partial(asyncio.get_running_loop().call_soon_threadsafe, ended.set)
        client = await nats.connect(self._streams.url)
        subscription = await client.jetstream().pull_subscribe(topic, "benchmark")

        async def fetch() -> None:
            while True:
                with suppress(TimeoutError):
                    for message in await subscription.fetch(_PREFETCH, timeout=1):
                        await arrived.put(message)

        async def handle() -> None:
            while True:
                message = await arrived.get()
                await work(message.data)
                await message.ack()

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(each) for each in (fetch(), *(handle() for _ in range(workers)))]
            await ended.wait()
            await client.flush()
            for task in tasks:
                task.cancel()
        await client.close()


def publish_to_nats(lab: Lab, streams: NatsStreams) -> Report:
    """Messages with a key each."""
    report, title, thread = Report(), "NATS", LoopThread("benchmark")
    publisher, topic = NatsPublisher(streams.url, timeout=60), streams.new()
    client = thread.run(nats.connect(streams.url))
    jetstream = client.jetstream()
    turns = {
        "publisher": _turn(lab, topic, partial(send, publisher)),
        "bare client": _turn(lab, topic, lambda messages: thread.run(_send_bare(jetstream, messages))),
    }
    speeds = speeds_of(lab, title, turns)
    found = rate_ratios(speeds, "publisher", "bare client")
    report.figures.append(figure(f"{title}: publisher / bare client", found, at_least=_TARGET))
    report.grids.append(grid(f"speed to {title}", speeds))
    publisher.close()
    thread.run(client.close())
    thread.close()
    return report


def _turn(lab: Lab, topic: str, send_all: Callable[[Sequence[Envelope]], None]) -> Callable[[], Speed]:
    def turn() -> Speed:
        messages = envelopes(topic, messages_of(lab))
        begun = perf_counter(), process_time()
        send_all(messages)
        return speed(len(messages), begun, (perf_counter(), process_time()))

    return turn


async def _send_bare(jetstream: Any, messages: Sequence[Envelope]) -> None:
    for start in range(0, len(messages), BATCH):
        await asyncio.gather(*(_publish(jetstream, each) for each in messages[start : start + BATCH]))


async def _publish(jetstream: Any, envelope: Envelope) -> None:
    """As a program without an outbox would write it."""
    headers = {
        "Nats-Msg-Id": envelope.id,
        "key": str(envelope.key),
        "content-type": envelope.content_type,
        "created": envelope.created_at.isoformat(),
    }
    await jetstream.publish(envelope.topic, envelope.payload, headers=headers, timeout=60)


def _in_thread(
    threads: ThreadPoolExecutor, work: Callable[[bytes], object], payload: bytes
) -> asyncio.Future[object]:
    return asyncio.get_running_loop().run_in_executor(threads, work, payload)
