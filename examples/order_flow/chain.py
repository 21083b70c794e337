"""The order flow as a chain of small messages: each makes one call, and commits the next with its writes."""

from collections.abc import Callable

from sqlalchemy import Connection

from examples.order_flow.remote import Refused
from examples.order_flow.shop import CONSUMER, Message, Shop, insert_order, lock_of, publish, settle
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
            with INBOX.transaction(shop.engine, (message.number, message.kind)) as work:
                if work.is_new:
                    LINKS[message.kind](shop, work.connection, message)
        except MessageInFlight:
            return AGAIN
        return None

    return handle


def check(shop: Shop, connection: Connection, message: Message) -> None:
    """Ask whether there is stock; this is the first message."""
    shop.inventory.call("check", message.number, key=_key(message))
    publish(connection, "lock", message.number, message.to)


def lock(shop: Shop, connection: Connection, message: Message) -> None:
    """Lock the stock, and insert the order."""
    found = shop.inventory.call("lock", message.number, key=_key(message))
    insert_order(connection, message.number, found)
    publish(connection, "ship", message.number, message.to)


def ship(shop: Shop, connection: Connection, message: Message) -> None:
    """Ship the order; if that is refused, another message undoes the earlier steps."""
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
"""The function for each kind of message."""


def _key(message: Message) -> str:
    return f"{message.number} {message.kind}"
