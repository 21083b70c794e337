"""The shop: its stock, its orders, and what each step of the chain writes.

Stock is counted, and there is no unique key on the orders: nothing here would notice a step that runs twice.
"""

import json
from dataclasses import dataclass

from sqlalchemy import Column, Connection, Integer, MetaData, String, Table, insert, update

INVENTORY, ORDER, DOWNSTREAM, DONE, RELEASE = TOPICS = (
    "order-chain.inventory",
    "order-chain.order",
    "order-chain.downstream",
    "order-chain.done",
    "order-chain.release",
)
"""Where the messages go; each topic's consumer has the topic's name."""

ITEMS = ("tea", "coffee", "milk")

metadata = MetaData()
stock = Table(
    "example_stock",
    metadata,
    Column("item", String(20), primary_key=True),
    Column("quantity", Integer, nullable=False),
)
orders = Table(
    "example_order",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("number", String(40), nullable=False, index=True),
    Column("status", String(20), nullable=False),
)


@dataclass(frozen=True, slots=True)
class Order:
    """What travels along the chain."""

    number: str
    item: str
    quantity: int
    to: str
    status: str = "new"

    @classmethod
    def of(cls, payload: bytes) -> "Order":
        """As a message says it."""
        return cls(**json.loads(payload))


def take_stock(connection: Connection, order: Order) -> None:
    """In the caller's transaction, take the order's quantity from the stock."""
    _change_stock(connection, order.item, -order.quantity)


def return_stock(connection: Connection, order: Order) -> None:
    """In the caller's transaction, give it back."""
    _change_stock(connection, order.item, order.quantity)


def insert_order(connection: Connection, order: Order) -> None:
    """In the caller's transaction, write the order down."""
    connection.execute(insert(orders).values(number=order.number, status=order.status))


def settle(connection: Connection, order: Order) -> None:
    """In the caller's transaction, write down what became of the order."""
    connection.execute(update(orders).where(orders.c.number == order.number).values(status=order.status))


def _change_stock(connection: Connection, item: str, by: int) -> None:
    connection.execute(update(stock).where(stock.c.item == item).values(quantity=stock.c.quantity + by))
