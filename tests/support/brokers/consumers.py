"""Consumers of any broker that run beside a test, and their handlers."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Protocol, TypeVar

from sqlalchemy import Connection, Engine

from inbox import Backoff, Delivery, Inbox, Outcome, Verdict, message_id
from tests.support import accounts
from tests.support.together import Task

SOON = Backoff(first=0.1, longest=0.1)
Handler = Callable[[Delivery], Outcome]


class Consumer(Protocol):
    """What runs until it is stopped."""

    def run(self) -> None: ...
    def stop(self) -> None: ...


C = TypeVar("C", bound=Consumer)


@contextmanager
def running(consumer: C) -> Iterator[C]:
    """Run a consumer during the block; the end of the block raises its error."""
    task = Task(consumer.run)
    try:
        yield consumer
    finally:
        consumer.stop()
    task.result()


class Counted:
    """A handler that counts the deliveries that it has finished."""

    def __init__(self, handler: Handler) -> None:
        self.count = 0
        self._handler = handler
        self._lock = Lock()

    def __call__(self, message: Delivery) -> Outcome:
        outcome = self._handler(message)
        with self._lock:
            self.count += 1
        return outcome


def taking(note: Callable[[Delivery], object]) -> Handler:
    """A handler that calls `note` and takes every message."""

    def take(message: Delivery) -> Outcome:
        note(message)
        return Outcome(Verdict.NEW)

    return take


def payloads(seen: list[bytes]) -> Handler:
    """A handler that takes every message and collects the payloads."""
    return taking(lambda message: seen.append(message.payload))


def bookkeeping(engine: Engine, before: Callable[[Delivery], object] = str, *, attempts: int = 12) -> Handler:
    """A handler that calls `before` and then adds to the account that the message's payload names. It retries
    this often itself while the database is unavailable."""

    @Inbox("bookkeeping").handler(
        engine, key=message_id, payload=lambda message: message.payload, attempts=attempts
    )
    def book(connection: Connection, message: Delivery) -> None:
        before(message)
        accounts.add(connection, message.payload.decode())

    return book
