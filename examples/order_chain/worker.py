"""The processes of the chain. Each works until its pipe tells it to end, or until it is killed."""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection as Pipe
from typing import Any

from sqlalchemy import URL, create_engine

from examples.order_chain.plan import Request
from examples.order_chain.shop import INVENTORY
from examples.order_chain.steps import Message, Step, publish, steps
from examples.order_flow.remote import Remote
from inbox import Backoff, Outcome
from outbox import DirectDelivery, Relay

LEASE = 2
"""Seconds after which another relay takes over the messages of a killed relay."""
BACKOFF = Backoff(first=0.1, longest=2)
TIMEOUT = 1.5
"""The most seconds for RabbitMQ to accept a batch: a send must not outlast the lease."""
AT_ONCE = 4
PAUSE = 0.1
"""Seconds between two orders."""


class Line:
    """A worker's end of its pipe; its reports arrive even if it is killed right after."""

    def __init__(self, pipe: Pipe) -> None:
        logging.disable()  # the consequences of a kill are expected, and counted
        self._pipe = pipe
        self._lock = threading.Lock()

    def say(self, *what: Any) -> None:
        """Report to the parent."""
        with self._lock:
            self._pipe.send(what)

    def at_the_end(self, then: Callable[[], Any]) -> None:
        """Call a function, in another thread, when the parent tells it to end or is gone."""

        def wait() -> None:
            self._pipe.poll(None)
            then()

        threading.Thread(target=wait, daemon=True).start()

    def counted(self, handlers: Mapping[str, Step]) -> dict[str, Step]:
        """The same handlers, which also report each delivery and its verdict to the parent."""
        return {topic: self._counted(topic, handler) for topic, handler in handlers.items()}

    def _counted(self, topic: str, handler: Step) -> Step:
        run: Step = getattr(handler, "outcome", handler)

        def tell(message: Message) -> Outcome:
            self.say("delivered", topic, message.id)
            outcome = run(message)
            self.say("verdict", topic, str(outcome.verdict))
            return outcome

        return tell


def customer(pipe: Pipe, url: URL, requests: Sequence[Request]) -> None:
    """Send orders, one per transaction; one that was rolled back counts as not sent."""
    line, engine = Line(pipe), create_engine(url)
    for request in requests:
        if pipe.poll(PAUSE):
            break
        for _ in range(request.times):
            with engine.connect() as connection:
                publish(connection, INVENTORY, request.order)
                if request.is_withdrawn:
                    connection.rollback()
                connection.commit()
        line.say("sent", request.order.number)
    pipe.poll(None)
    engine.dispose()


def direct_relay(pipe: Pipe, url: URL, downstream: Remote) -> None:
    """Pass the outbox's messages to the steps, which run in this process."""
    line, engine = Line(pipe), create_engine(url)
    delivery = DirectDelivery(line.counted(steps(engine, downstream)), concurrency=AT_ONCE)
    relay = Relay(engine, delivery, lease=LEASE, backoff=BACKOFF)
    line.at_the_end(relay.stop)
    relay.run()
    engine.dispose()


def rabbit_relay(pipe: Pipe, url: URL, broker: str) -> None:
    """Send the outbox's messages to RabbitMQ."""
    from outbox.rabbitmq import RabbitPublisher

    line, engine, publisher = Line(pipe), create_engine(url), RabbitPublisher(broker, timeout=TIMEOUT)
    relay = Relay(engine, publisher, lease=LEASE, backoff=BACKOFF)
    line.at_the_end(relay.stop)
    relay.run()
    publisher.close()
    engine.dispose()


def rabbit_consumer(pipe: Pipe, url: URL, downstream: Remote, broker: str) -> None:
    """Pass RabbitMQ's messages to the steps: a consumer for each queue, each in its own thread."""
    from inbox.rabbitmq import RabbitConsumer

    line, engine = Line(pipe), create_engine(url, pool_size=20)
    handlers = line.counted(steps(engine, downstream))
    consumers = [
        RabbitConsumer(broker, topic, handler, concurrency=AT_ONCE, backoff=BACKOFF)
        for topic, handler in handlers.items()
    ]
    threads = [threading.Thread(target=consumer.run) for consumer in consumers]
    for thread in threads:
        thread.start()
    pipe.poll(None)
    for consumer in consumers:
        consumer.stop()
    for thread in threads:
        thread.join()
    engine.dispose()
