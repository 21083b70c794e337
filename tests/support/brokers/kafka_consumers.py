"""Consumers of Kafka with a business table, in this process or in one that a test may kill.

Started as `python -m tests.support.brokers.kafka_consumers BROKER TOPIC GROUP PAUSE [MOST]`, with the
database's URL on standard input, it consumes until SIGTERM, one message in PAUSE seconds, and holds MOST of a
partition.
"""

import sys
import time
from collections.abc import Callable
from typing import Any

from sqlalchemy import (
    Column,
    Connection,
    Engine,
    Integer,
    MetaData,
    String,
    Table,
    create_engine,
    insert,
    select,
)

from inbox import Backoff, Delivery, Inbox, message_id
from inbox._consuming.kafka import lane
from inbox.kafka import KafkaConsumer
from tests.support.brokers.consumers import Handler

APPLIED = Table(
    "applied",
    MetaData(),
    Column("number", Integer, primary_key=True),
    Column("key", String(64)),
    Column("value", String(64), nullable=False),
)
QUICK = Backoff(first=0.05, longest=0.2)
INBOX = Inbox("payments")


def make_table(engine: Engine) -> None:
    """Create a table whose rows record which messages were applied, and in which order within a partition."""
    APPLIED.metadata.create_all(engine)


def apply(connection: Connection, delivery: Delivery) -> None:
    """Apply a message, in the caller's transaction: applying it twice makes two rows."""
    connection.execute(insert(APPLIED).values(key=delivery.key, value=delivery.payload.decode()))


def applied(engine: Engine) -> list[str]:
    """The committed rows, in the order in which they were written."""
    with engine.connect() as connection:
        return list(connection.scalars(select(APPLIED.c.value).order_by(APPLIED.c.number)))


def applied_by_key(engine: Engine) -> dict[str, list[str]]:
    """`applied` for each key."""
    found: dict[str, list[str]] = {}
    with engine.connect() as connection:
        for key, value in connection.execute(
            select(APPLIED.c.key, APPLIED.c.value).order_by(APPLIED.c.number)
        ):
            found.setdefault(key, []).append(value)
    return found


def applying(
    engine: Engine, key: Callable[[Any], str] = message_id, before: Callable[[Delivery], object] = id
) -> Handler:
    """An exactly-once handler that calls `before` and then applies the message."""

    @INBOX.handler(engine, key=key, attempts=1)
    def handle(connection: Connection, delivery: Delivery) -> None:
        before(delivery)
        apply(connection, delivery)

    return handle


def consumer(
    address: str, topic: str, handler: Handler, group: str = "payments", **options: Any
) -> KafkaConsumer:
    """A consumer whose death the group notices soon, and which retries quickly; settings are in `config`."""
    config = {
        "bootstrap.servers": address,
        "group.id": group,
        "session.timeout.ms": 2_000,
        "heartbeat.interval.ms": 200,
        **options.pop("config", {}),
    }
    return KafkaConsumer(config, topic, handler, **{"backoff": QUICK, **options})


def main(address: str, topic: str, group: str, pause: str, most: str = "") -> None:
    """Consume until SIGTERM."""
    options: dict[str, Any] = {}
    if most:
        lane.MOST, options = int(most), {"batch": 2}
    engine = create_engine(sys.stdin.readline().strip())
    handler = applying(engine, before=lambda _: time.sleep(float(pause)))
    consumer(address, topic, handler, group, **options).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
