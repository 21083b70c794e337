"""The steps of the chain: each takes a message of its topic, and publishes the next."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from sqlalchemy import Connection, Engine

from examples.order_chain import shop
from examples.order_chain.shop import DONE, DOWNSTREAM, INVENTORY, ORDER, RELEASE, Order
from examples.order_flow.remote import Refused, Remote
from inbox import Backoff, Claim, Delivery, Inbox, Outcome, SqlStore, StatusInbox, message_key
from outbox import Envelope, Outbox

Message = Envelope | Delivery
"""A message from the outbox itself, or as delivered by a broker: the same fields."""
Step = Callable[[Message], Outcome]

LEASE = 1
"""Seconds after which the downstream call of a killed worker is taken over."""

_outbox = Outbox()


def publish(connection: Connection, topic: str, order: Order) -> None:
    """Publish the order to a topic, in the caller's transaction. Its number is the key: a message with
    another id but the same key means the same order."""
    _outbox.publish(connection, topic, order, key=order.number)


def steps(engine: Engine, downstream: Remote) -> Mapping[str, Step]:
    """The handlers, by topic."""
    calls = StatusInbox(DOWNSTREAM, store=SqlStore(engine), lease=LEASE, backoff=Backoff(0.1))

    @Inbox(INVENTORY).handler(engine, key=message_key)
    def reserve(connection: Connection, message: Message) -> None:
        order = Order.of(message.payload)
        shop.take_stock(connection, order)
        publish(connection, ORDER, order)

    @Inbox(ORDER).handler(engine, key=message_key)
    def write_down(connection: Connection, message: Message) -> None:
        order = Order.of(message.payload)
        shop.insert_order(connection, order)
        publish(connection, DOWNSTREAM, order)

    @calls.handler(key=message_key)
    def call(claim: Claim, message: Message) -> None:
        order = Order.of(message.payload)

        def ship() -> str:
            try:
                downstream.call("ship", order.number, key=claim.step_key("ship"), to=order.to)
            except Refused:
                return "refused"
            return "confirmed"

        answered = replace(order, status=claim.step("ship", ship))
        claim.transact("publish", lambda connection: publish(connection, DONE, answered))

    @Inbox(DONE).handler(engine, key=message_key)
    def settle(connection: Connection, message: Message) -> None:
        order = Order.of(message.payload)
        shop.settle(connection, order)
        if order.status == "refused":
            publish(connection, RELEASE, order)

    @Inbox(RELEASE).handler(engine, key=message_key)
    def release(connection: Connection, message: Message) -> None:
        shop.return_stock(connection, Order.of(message.payload))

    return {INVENTORY: reserve, ORDER: write_down, DOWNSTREAM: call, DONE: settle, RELEASE: release}
