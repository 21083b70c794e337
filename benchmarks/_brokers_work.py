"""A message's work, one INSERT into the inbox's table and one UPDATE in a transaction: by hand, and with an
inbox."""

import os
import random
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import psycopg
from sqlalchemy import Connection, Engine, func, select

from inbox import Delivery, Inbox, Outcome

from ._brokers_messages import key_of
from ._business import CONSUMER, ROWS_PER_WORKER, account, add_row, add_to_account

M = TypeVar("M")

_TAKE = "INSERT INTO inbox_message (consumer, key, claim) VALUES (%s, %s, %s) ON CONFLICT DO NOTHING"
_ADD = "UPDATE account SET balance = balance + 1 WHERE id = %s"


class ByHand:
    """psycopg alone, with a connection for each thread."""

    def __init__(self, engine: Engine, count: Callable[[], None]) -> None:
        self._url = engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
        self._count = count
        self._own = threading.local()
        self._connections: list[psycopg.Connection[Any]] = []

    def __call__(self, payload: bytes) -> None:
        """Handle the message with this payload."""
        connection = self._connection()
        taken = connection.execute(_TAKE, (CONSUMER, key_of(payload), os.urandom(16)))
        if taken.rowcount == 1:
            connection.execute(_ADD, (random.randrange(ROWS_PER_WORKER),))
            self._count()
        connection.commit()

    def close(self) -> None:
        """Close the connections."""
        for connection in self._connections:
            connection.close()

    def _connection(self) -> psycopg.Connection[Any]:
        if not hasattr(self._own, "connection"):
            self._own.connection = psycopg.connect(self._url)
            self._connections.append(self._own.connection)
        found: psycopg.Connection[Any] = self._own.connection
        return found


def in_sqlalchemy(engine: Engine, count: Callable[[], None]) -> Callable[[bytes], None]:
    """The same by hand, in SQLAlchemy."""
    take, add = add_row(), add_to_account()

    def handle(payload: bytes) -> None:
        row = {"consumer": CONSUMER, "key": key_of(payload), "claim": os.urandom(16), "digest": None}
        with engine.begin() as connection:
            if connection.execute(take, row).rowcount == 1:
                connection.execute(add, {"number": random.randrange(ROWS_PER_WORKER), "amount": 1})
                count()

    return handle


def of_payload(engine: Engine, count: Callable[[], None]) -> Callable[[bytes], Outcome]:
    """The same with an inbox, for a message's payload."""
    return _handler(engine, key_of, count)


def of_delivery(engine: Engine, count: Callable[[], None]) -> Callable[[Delivery], Outcome]:
    """The same with an inbox, for a message as our consumers deliver it."""
    return _handler(engine, lambda delivery: key_of(delivery.payload or b""), count)


def _handler(engine: Engine, key: Callable[[M], str], count: Callable[[], None]) -> Callable[[M], Outcome]:
    add = add_to_account()

    @Inbox(CONSUMER).handler(engine, key=key)
    def handle(connection: Connection, _: M) -> None:
        connection.execute(add, {"number": random.randrange(ROWS_PER_WORKER), "amount": 1})
        count()

    return handle


def done(engine: Engine) -> int:
    """How many messages have taken effect."""
    with engine.connect() as connection:
        return connection.scalar(select(func.sum(account.c.balance))) or 0
