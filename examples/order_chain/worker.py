"""The processes of the chain. Each works until its pipe tells it to end, or until it is killed."""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from multiprocessing.connection import Connection as Pipe
from typing import Any, Protocol

from sqlalchemy import URL, create_engine

from examples.order_chain.plan import Request
from examples.order_chain.shop import INVENTORY
from examples.order_chain.steps import Message, Step, publish, steps
from examples.order_flow.remote import Remote
from inbox import Backoff, Outcome
from outbox import DirectDelivery, Publisher, Relay

LEASE = 2
"""Seconds after which another relay takes over the messages of a killed relay."""
BACKOFF = Backoff(first=0.1, longest=2)
TIMEOUT = 1.5
"""The most seconds for a broker to accept a batch: a send must not outlast the lease."""
KEPT = 3_600
"""Seconds for which the ids of sent messages are known: longer than a trial takes."""
AT_ONCE = 4
PAUSE = 0.1
"""Seconds between two orders."""


class Closable(Publisher, Protocol):
    """A publisher with connections."""

    def close(self) -> None:
        """Close them."""
        ...


class Consumer(Protocol):
    """Takes messages until it is told to stop."""

    def run(self) -> None:
        """Take messages."""
        ...

    def stop(self) -> None:
        """Let `run` end."""
        ...


class Client(Protocol):
    """What a process needs of a broker; it can be pickled."""

    def publisher(self) -> Closable:
        """A publisher to the topics."""
        ...

    def consumer(self, topic: str, handler: Step) -> Consumer:
        """A consumer of a topic."""
        ...


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
            self.say("verdict", topic, message.id, str(outcome.verdict))
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
    relay = Relay(engine, delivery, lease=LEASE, backoff=BACKOFF, keep_sent=KEPT)
    line.at_the_end(relay.stop)
    relay.run()
    engine.dispose()


def relay(pipe: Pipe, url: URL, client: Client) -> None:
    """Send the outbox's messages to the broker."""
    line, engine, publisher = Line(pipe), create_engine(url), client.publisher()
    sending = Relay(engine, publisher, lease=LEASE, backoff=BACKOFF, keep_sent=KEPT)
    line.at_the_end(sending.stop)
    sending.run()
    publisher.close()
    engine.dispose()


def consumer(pipe: Pipe, url: URL, downstream: Remote, client: Client) -> None:
    """Pass the broker's messages to the steps: a consumer for each topic, each in its own thread."""
    line, engine = Line(pipe), create_engine(url, pool_size=20)
    handlers = line.counted(steps(engine, downstream))
    consumers = [_Member(client, topic, handler) for topic, handler in handlers.items()]
    threads = [threading.Thread(target=each.run) for each in consumers]
    for thread in threads:
        thread.start()
    pipe.poll(None)
    for each in consumers:
        each.stop()
    for thread in threads:
        thread.join()
    engine.dispose()


class _Member:
    """A consumer that waits for its broker: one that begins while the broker is down gives up."""

    def __init__(self, client: Client, topic: str, handler: Step) -> None:
        self._new = partial(client.consumer, topic, handler)
        self._consumer = self._new()
        self._is_over = False

    def run(self) -> None:
        """Take messages until `stop`."""
        while not self._is_over:
            try:
                self._consumer.run()
            except ConnectionError:
                time.sleep(PAUSE)
                self._consumer = self._new()
            else:
                break

    def stop(self) -> None:
        """Let `run` end."""
        self._is_over = True
        self._consumer.stop()
