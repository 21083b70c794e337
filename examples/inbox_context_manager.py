"""The inbox as a context manager: two deliveries at the same time, one effect.

The inbox row is part of the same transaction as the business writes: both commit or neither does. The second
delivery waits for the first one's transaction, gets `DUPLICATE`, and the result that the first one stored. A
delivery with ``wait=0`` gets `MessageInFlight` instead. If `handle` returns, acknowledge the message; if it
raises, do not.

    python -m examples.inbox_context_manager [--url URL]
"""

from sqlalchemy import Column, Engine, Integer, MetaData, String, Table, insert, select, update

from examples._common import CONSUMER, prepared, twice_at_once
from inbox import Inbox, Outcome
from inbox.errors import MessageInFlight

metadata = MetaData()
account = Table(
    "example_account",
    metadata,
    Column("name", String(20), primary_key=True),
    Column("balance", Integer, nullable=False),
)


def handle(inbox: Inbox, engine: Engine, message: str) -> Outcome:
    """Add 100 to the account, once for each message."""
    with inbox.transaction(engine, key=message) as work:
        if work.is_new:
            work.connection.execute(update(account).values(balance=account.c.balance + 100))
            work.result = {"balance": work.connection.scalar(select(account.c.balance))}
    return Outcome(work.verdict, work.result)


def impatient_delivery(engine: Engine, message: str) -> str:
    """Deliver a message while another transaction is taking it."""
    with Inbox(CONSUMER).transaction(engine, key=message):
        try:
            return handle(Inbox(CONSUMER, wait=0), engine, message).verdict
        except MessageInFlight as refusal:
            return f"{refusal.verdict}, to be delivered again"


def main() -> None:
    with prepared(__doc__, metadata) as engine:
        with engine.begin() as connection:
            connection.execute(insert(account).values(name="alice", balance=0))
        inbox = Inbox(CONSUMER)
        outcomes = twice_at_once(lambda: handle(inbox, engine, "payment-1"))
        for outcome in sorted(outcomes, key=lambda outcome: outcome.verdict, reverse=True):
            print(f"payment-1: {outcome.verdict}, result {outcome.result}")
        print(f"payment-2, while it is being taken: {impatient_delivery(engine, 'payment-2')}")
        with engine.connect() as connection:
            balance = connection.scalar(select(account.c.balance))
        print(f"balance: {balance}, expected: 100")


if __name__ == "__main__":
    main()
