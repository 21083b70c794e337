"""RabbitMQ: our consumer, and aiormq alone."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import aiormq
from aiormq.abc import DeliveredMessage

from inbox import Delivery, Outcome
from inbox.rabbitmq import RabbitConsumer
from outbox.rabbitmq import RabbitPublisher
from tests.support.brokers.rabbit_queues import Queues

from ._brokers_lab import Count

_PREFETCH = 32


class Rabbit:
    """A durable classic queue."""

    def __init__(self, queues: Queues) -> None:
        self._queues = queues
        self.publisher = RabbitPublisher(queues.url)

    def new_topic(self, workers: int) -> str:
        """As `Broker.new_topic`."""
        return self._queues.new()

    def close(self) -> None:
        """Close the publisher."""
        self.publisher.close()

    def consumer(self, topic: str, workers: int, handler: Callable[[Delivery], Outcome]) -> RabbitConsumer:
        """As `Broker.consumer`."""
        return RabbitConsumer(self._queues.url, topic, handler, prefetch=_PREFETCH, concurrency=workers)

    def consume_bare(self, topic: str, workers: int, work: Callable[[bytes], object], count: Count) -> None:
        """Each worker has a thread, because the work blocks."""
        with ThreadPoolExecutor(workers) as threads:
            asyncio.run(self._consume(topic, workers, partial(_in_thread, threads, work), count))

    async def _consume(
        self, topic: str, workers: int, work: Callable[[bytes], asyncio.Future[object]], count: Count
    ) -> None:
        ended, arrived = asyncio.Event(), asyncio.Queue[DeliveredMessage]()
        count.on_end = partial(asyncio.get_running_loop().call_soon_threadsafe, ended.set)
        connection = await aiormq.connect(self._queues.url)
        channel = await connection.channel(publisher_confirms=False)
        await channel.basic_qos(prefetch_count=_PREFETCH)

        async def handle() -> None:
            while True:
                message = await arrived.get()
                await work(message.body)
                await channel.basic_ack(message.delivery_tag or 0)
                arrived.task_done()

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(handle()) for _ in range(workers)]
            await channel.basic_consume(topic, arrived.put)
            await ended.wait()
            await arrived.join()
            for task in tasks:
                task.cancel()
        await connection.close()


def _in_thread(
    threads: ThreadPoolExecutor, work: Callable[[bytes], object], payload: bytes
) -> asyncio.Future[object]:
    return asyncio.get_running_loop().run_in_executor(threads, work, payload)
