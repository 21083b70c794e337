"""An outbox and an inbox without a broker: the relay runs the handlers itself, in the same database.

Billing takes an order, writes an invoice and publishes the next message, all in the transaction of its inbox
row; shipping takes that message. Billing's first attempt fails after publishing: invoice, message and inbox
row are rolled back together, and the second attempt finds nothing of the first.

    python -m examples.outbox_direct [--url URL]
"""

import json
import logging

from sqlalchemy import Column, Connection, MetaData, String, Table, func, insert, select

from examples._common import CONSUMER, forget, prepared
from examples._outbox import clear, waiting
from inbox import Backoff, Inbox, message_key
from outbox import DirectDelivery, Envelope, Outbox, Relay

ORDERS, INVOICES = "example.orders", "example.invoices"
BILLING, SHIPPING = Inbox(f"{CONSUMER}-billing"), Inbox(f"{CONSUMER}-shipping")

metadata = MetaData()
invoice = Table("example_invoice", metadata, Column("order", String(20), nullable=False))
parcel = Table("example_parcel", metadata, Column("order", String(20), nullable=False))


def main() -> None:
    logging.getLogger("inbox.listener").setLevel(logging.CRITICAL)  # the first attempt fails on purpose
    outbox = Outbox()
    with prepared(__doc__, metadata) as engine:
        clear(engine, ORDERS, INVOICES)
        for inbox in (BILLING, SHIPPING):
            forget(engine, inbox.consumer)

        @BILLING.handler(engine, key=message_key)
        def bill(connection: Connection, message: Envelope) -> None:
            order = json.loads(message.payload)["order"]
            connection.execute(insert(invoice).values(order=order))
            outbox.publish(connection, INVOICES, {"order": order}, key=order)
            if message.attempt == 1:
                print(f"billing {order}: fails")
                raise ConnectionError("the printer is out of paper")
            print(f"billing {order}: done, attempt {message.attempt}")

        @SHIPPING.handler(engine, key=message_key)
        def ship(connection: Connection, message: Envelope) -> None:
            order = json.loads(message.payload)["order"]
            connection.execute(insert(parcel).values(order=order))
            print(f"shipping {order}: done, attempt {message.attempt}")

        delivery = DirectDelivery({ORDERS: bill, INVOICES: ship})
        relay = Relay(engine, delivery, backoff=Backoff(first=0))
        with engine.begin() as connection:
            outbox.publish(connection, ORDERS, {"order": "order-1"}, key="order-1")
        relayed = 0
        while waiting(engine):
            relayed += relay.run_once()
        print(f"messages relayed: {relayed}")
        with engine.connect() as connection:
            for table in (invoice, parcel):
                found = connection.scalar(select(func.count()).select_from(table))
                print(f"{table.name.removeprefix('example_')}s: {found}, expected: 1")


if __name__ == "__main__":
    main()
