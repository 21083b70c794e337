"""The order flow as a chain of small messages: each makes one call, and commits the next with its writes."""

from collections.abc import Callable

from sqlalchemy import Connection

from examples.order_flow.remote import Refused
from examples.order_flow.shop import CONSUMER, Message, Shop, insert_order, lock_of, publish, settle
from inbox import Inbox
from inbox.errors import MessageInFlight

INBOX = Inbox(CONSUMER)
AGAIN = 0.1
"""Seconds after which a message that another worker is at comes again."""


def handler(shop: Shop) -> Callable[[Message], float | None]:
    """Handles a message: None to acknowledge it, or seconds after which it is to come again."""

    def handle(message: Message) -> float | None:
        try:
            with INBOX.transaction(shop.engine, (message.number, message.kind)) as work:
                if work.is_new:
                    LINKS[message.kind](shop, work.connection, message)
        except MessageInFlight:
            return AGAIN
        return None

    return handle


def check(shop: Shop, connection: Connection, message: Message) -> None:
    """The first message: is there stock?"""
    shop.inventory.call("check", message.number, key=_key(message))
    publish(connection, "lock", message.number, message.to)


def lock(shop: Shop, connection: Connection, message: Message) -> None:
    """Lock the stock, and write the order down."""
    found = shop.inventory.call("lock", message.number, key=_key(message))
    insert_order(connection, message.number, found)
    publish(connection, "ship", message.number, message.to)


def ship(shop: Shop, connection: Connection, message: Message) -> None:
    """Ship the order; if that is refused, what was done before has to be undone by another message."""
    try:
        shop.shipping.call("ship", message.number, key=_key(message), to=message.to)
    except Refused:
        publish(connection, "release", message.number, message.to)
    else:
        settle(connection, message.number, "confirmed")


def release(shop: Shop, connection: Connection, message: Message) -> None:
    """Release the stock of an order that is not shipped."""
    found = lock_of(connection, message.number)
    shop.inventory.call("release", message.number, key=_key(message), id=found)
    settle(connection, message.number, "refused")


LINKS = {"check": check, "lock": lock, "ship": ship, "release": release}
"""By the message's kind: what to do."""


def _key(message: Message) -> str:
    return f"{message.number} {message.kind}"
