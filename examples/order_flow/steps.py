"""The order flow in status-table mode: finished steps stay finished, whichever worker is killed."""

from collections.abc import Callable

from examples.order_flow.remote import Refused
from examples.order_flow.shop import CONSUMER, Message, Shop, insert_order, settle
from inbox import Backoff, Claim, SqlStore, StatusInbox
from inbox.errors import GiveUp, LeaseLost, NotTaken

LEASE = 2
"""Seconds after which the message of a killed worker is taken over."""


def handler(shop: Shop) -> Callable[[Message], float | None]:
    """A function that handles a message; it returns None to acknowledge it, or a redelivery delay in
    seconds."""
    inbox = StatusInbox(CONSUMER, store=SqlStore(shop.engine), lease=LEASE, backoff=Backoff(0.1))

    def handle(message: Message) -> float | None:
        try:
            with inbox.claim(message.number) as claim:
                if claim.is_new:
                    place(shop, claim, message)
        except GiveUp:
            pass  # its steps are undone and it is dead; or, if the undo has failed, it is redelivered
        except NotTaken as refusal:
            return refusal.retry_after  # None: it is dead
        except LeaseLost:
            return LEASE
        return claim.retry_after

    return handle


def place(shop: Shop, claim: Claim, message: Message) -> None:
    """Each call is a step with its own idempotency key; each write commits together with its record."""
    number = message.number

    def check() -> None:
        shop.inventory.call("check", number, key=claim.step_key("check"))

    def lock_stock() -> str:
        lock: str = shop.inventory.call("lock", number, key=claim.step_key("lock"))
        return lock

    def release_stock(lock: str) -> None:
        shop.inventory.call("release", number, key=claim.step_key("release"), id=lock)

    def refuse(_: None) -> None:
        with shop.engine.begin() as connection:
            settle(connection, number, "refused")

    def ship() -> None:
        try:
            shop.shipping.call("ship", number, key=claim.step_key("ship"), to=message.to)
        except Refused as error:
            raise GiveUp(str(error)) from error

    claim.step("check", check)
    lock = claim.step("lock", lock_stock, undo=release_stock)
    claim.transact("insert", lambda connection: insert_order(connection, number, lock), undo=refuse)
    claim.step("ship", ship)
    claim.transact("update", lambda connection: settle(connection, number, "confirmed"))
