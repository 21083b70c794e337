"""The shop: orders in a database, and a payment service outside of it."""

import json
import time
from collections import Counter
from collections.abc import Callable

from sqlalchemy import Column, Connection, Engine, MetaData, String, Table, func, insert, select

from inbox import Backoff, Claim, Delivery, Inbox, Outcome, SqlStore, StatusInbox, message_key
from inbox.errors import NotTaken

METADATA = MetaData()
# No unique key: an order that took effect twice is there twice.
ORDERS = Table("dedup_orders", METADATA, Column("number", String(50)))
SOON = Backoff(first=0.5, longest=0.5)
Handler = Callable[[Delivery], Outcome]


def place(connection: Connection, message: Delivery) -> None:
    """Write the order, in the transaction that also has the inbox row."""
    connection.execute(insert(ORDERS).values(number=json.loads(message.payload)["order"]))


def placing(engine: Engine, before: Callable[[Delivery], object] = str) -> Handler:
    """A handler that calls `before` and writes the order."""

    @Inbox("shop", wait=1).handler(engine, key=message_key)
    def handle(connection: Connection, message: Delivery) -> None:
        before(message)
        place(connection, message)

    return handle


def placed(engine: Engine, number: str) -> int:
    """How often the order was written."""
    with engine.connect() as connection:
        counted = select(func.count()).where(ORDERS.c.number == number)
        return connection.execute(counted).scalar_one()


class Payments:
    """A service that no transaction covers: it counts how often it was called for each order."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    def charge(self, number: str) -> None:
        """Take a while, as services do."""
        self.calls[number] += 1
        time.sleep(3)


def paying(engine: Engine, payments: Payments) -> Handler:
    """A handler in status-table mode that calls the service."""
    inbox = StatusInbox("payments", store=SqlStore(engine), lease=30, backoff=SOON)

    @inbox.handler(key=message_key)
    def handle(claim: Claim, message: Delivery) -> None:
        number = json.loads(message.payload)["order"]
        claim.step("charge", lambda: payments.charge(number))

    return handle


class Noted:
    """A handler that notes the verdict about each delivery, or that it failed."""

    def __init__(self, handler: Handler) -> None:
        self.verdicts: list[str] = []
        self._run: Handler = getattr(handler, "outcome", handler)

    def __call__(self, message: Delivery) -> Outcome:
        try:
            outcome = self._run(message)
        except NotTaken as refused:
            self.verdicts.append(str(refused.verdict))
            raise
        except Exception:
            self.verdicts.append("failed")
            raise
        self.verdicts.append("failed" if outcome.error else str(outcome.verdict))
        return outcome
