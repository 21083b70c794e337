"""The shop: its orders, its queue of messages, and the services that it calls.

The orders have no unique key: nothing here would detect an order that is taken twice.
"""

from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import (
    Column,
    Connection,
    DateTime,
    Engine,
    Integer,
    MetaData,
    String,
    Table,
    delete,
    func,
    insert,
    select,
    update,
)

from examples.order_flow.remote import Remote

CONSUMER = "order-flow"
VISIBILITY = 0.5
"""Seconds after which a message that was delivered and not answered is redelivered."""

metadata = MetaData()
order = Table(
    "example_order",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("number", String(40), nullable=False, index=True),
    Column("status", String(20), nullable=False),
    Column("lock", String(40), nullable=False),
)
queue = Table(
    "example_queue",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("kind", String(20), nullable=False),
    Column("number", String(40), nullable=False),
    Column("to", String(40), nullable=False),
    Column("visible_at", DateTime(timezone=True), nullable=False, server_default=func.clock_timestamp()),
)


@dataclass(frozen=True, slots=True)
class Message:
    """An order in the queue: `number` is to be shipped `to`; `kind` is the next action."""

    id: int
    kind: str
    number: str
    to: str


@dataclass(frozen=True, slots=True)
class Shop:
    """The objects that a handler needs."""

    engine: Engine
    inventory: Remote
    shipping: Remote


def insert_order(connection: Connection, number: str, lock: str) -> None:
    """Insert the order with the id of its stock lock, in the caller's transaction."""
    connection.execute(insert(order).values(number=number, status="new", lock=lock))


def settle(connection: Connection, number: str, status: str) -> None:
    """Record the outcome of the order, in the caller's transaction."""
    connection.execute(update(order).where(order.c.number == number).values(status=status))


def lock_of(connection: Connection, number: str) -> str:
    """The id of an order's stock lock."""
    lock: str = connection.execute(select(order.c.lock).where(order.c.number == number)).scalar_one()
    return lock


def publish(connection: Connection, kind: str, number: str, to: str) -> None:
    """Put a message into the queue, in the caller's transaction."""
    connection.execute(insert(queue).values(kind=kind, number=number, to=to))


def take(engine: Engine) -> Message | None:
    """Take the next message and hide it from others for a while; like any broker, at-least-once."""
    now = func.clock_timestamp()
    due = select(queue.c.id).where(queue.c.visible_at <= now).order_by(queue.c.visible_at, queue.c.id)
    first = due.limit(1).with_for_update(skip_locked=True).scalar_subquery()
    hide = (
        update(queue)
        .where(queue.c.id == first)
        .values(visible_at=now + timedelta(seconds=VISIBILITY))
        .returning(queue.c.id, queue.c.kind, queue.c.number, queue.c.to)
    )
    with engine.begin() as connection:
        row = connection.execute(hide).one_or_none()
    return None if row is None else Message(*row)


def answer(engine: Engine, message: Message, again: float | None) -> None:
    """Acknowledge a message, or have it redelivered after `again` seconds."""
    this = queue.c.id == message.id
    later = func.clock_timestamp() + timedelta(seconds=again or 0)
    change = (
        delete(queue).where(this) if again is None else update(queue).where(this).values(visible_at=later)
    )
    with engine.begin() as connection:
        connection.execute(change)
