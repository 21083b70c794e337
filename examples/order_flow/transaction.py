"""The order flow in one transaction, including its calls: a misuse of the exactly-once path."""

from collections.abc import Callable

from sqlalchemy import Connection

from examples.order_flow.remote import Refused
from examples.order_flow.shop import CONSUMER, Message, Shop, insert_order, settle
from inbox import Inbox
from inbox.errors import MessageInFlight

INBOX = Inbox(CONSUMER)
AGAIN = 0.1
"""Seconds after which a message that another worker is handling is redelivered."""


def handler(shop: Shop) -> Callable[[Message], float | None]:
    """A function that handles a message; it returns None to acknowledge it, or a redelivery delay in
    seconds."""

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
    """Place the order; the transaction is open all the time, and the calls are not part of it."""
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
