"""The shop: its stock, its orders, and the writes of each step of the chain.

Stock is a counter, and the orders have no unique key: nothing here would detect a step that runs twice.
"""

import json
from dataclasses import dataclass

from sqlalchemy import Column, Connection, Integer, MetaData, String, Table, insert, update

INVENTORY, ORDER, DOWNSTREAM, DONE, RELEASE = TOPICS = (
    "order-chain-inventory",
    "order-chain-order",
    "order-chain-downstream",
    "order-chain-done",
    "order-chain-release",
)
"""The topics of the messages; each topic's consumer has the topic's name."""

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
    """The order, which every message of the chain carries."""

    number: str
    item: str
    quantity: int
    to: str
    status: str = "new"

    @classmethod
    def of(cls, payload: bytes) -> "Order":
        """The order in a message's payload."""
        return cls(**json.loads(payload))


def take_stock(connection: Connection, order: Order) -> None:
    """Take the order's quantity from the stock, in the caller's transaction."""
    _change_stock(connection, order.item, -order.quantity)


def return_stock(connection: Connection, order: Order) -> None:
    """Return the order's quantity to the stock, in the caller's transaction."""
    _change_stock(connection, order.item, order.quantity)


def insert_order(connection: Connection, order: Order) -> None:
    """Insert the order, in the caller's transaction."""
    connection.execute(insert(orders).values(number=order.number, status=order.status))


def settle(connection: Connection, order: Order) -> None:
    """Record the outcome of the order, in the caller's transaction."""
    connection.execute(update(orders).where(orders.c.number == order.number).values(status=order.status))


def _change_stock(connection: Connection, item: str, by: int) -> None:
    connection.execute(update(stock).where(stock.c.item == item).values(quantity=stock.c.quantity + by))
