"""The order flow in one transaction, calls and all: what the exactly-once path is not made for."""

from collections.abc import Callable

from sqlalchemy import Connection

from examples.order_flow.remote import Refused
from examples.order_flow.shop import CONSUMER, Message, Shop, insert_order, settle
from inbox import Inbox
from inbox.errors import MessageInFlight

INBOX = Inbox(CONSUMER)
AGAIN = 0.1
"""Seconds after which a message that another worker is at comes again."""


def handler(shop: Shop) -> Callable[[Message], float | None]:
    """Handles a message: None to acknowledge it, or seconds after which it is to come again."""

    def handle(message: Message) -> float | None:
        try:
            with INBOX.transaction(shop.engine, message.number) as work:
                if work.is_new:
                    place(shop, work.connection, message)
        except MessageInFlight:
            return AGAIN
        return None

    return handle


def place(shop: Shop, connection: Connection, message: Message) -> None:
    """The transaction is open from here on, and knows nothing of the calls."""
    number = message.number
    shop.inventory.call("check", number)
    lock = shop.inventory.call("lock", number)
    insert_order(connection, number, lock)
    try:
        shop.shipping.call("ship", number, to=message.to)
    except Refused:
        shop.inventory.call("release", number, id=lock)
        settle(connection, number, "refused")
    else:
        settle(connection, number, "confirmed")
