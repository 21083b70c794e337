"""The inbox as a decorator: the function runs once for each key, however often it is called.

Transient errors (a deadlock, a lost connection) are retried in a new transaction. With ``payload=``, the
inbox distinguishes a message that reuses a key for something else from a duplicate: it is never run, and
never silently dropped, because the function raises. If it returns, acknowledge the message.

    python -m examples.inbox_decorator [--url URL]
"""

from typing import TypedDict

from sqlalchemy import Column, Connection, Integer, MetaData, String, Table, insert, select, update

from examples._common import CONSUMER, prepared, twice_at_once
from inbox import Inbox
from inbox.errors import PayloadMismatch

metadata = MetaData()
account = Table(
    "example_account",
    metadata,
    Column("name", String(20), primary_key=True),
    Column("balance", Integer, nullable=False),
)


class Payment(TypedDict):
    """A message as a broker would deliver it."""

    id: str
    name: str
    amount: int


def main() -> None:
    inbox = Inbox(CONSUMER)
    message: Payment = {"id": "payment-1", "name": "alice", "amount": 100}
    with prepared(__doc__, metadata) as engine:

        @inbox.handler(engine, key=lambda message: message["id"], payload=lambda message: message)
        def pay(connection: Connection, message: Payment) -> dict[str, int | None]:
            this = account.c.name == message["name"]
            balance = account.c.balance + message["amount"]
            connection.execute(update(account).where(this).values(balance=balance))
            return {"balance": connection.scalar(select(account.c.balance).where(this))}

        with engine.begin() as connection:
            connection.execute(insert(account).values(name="alice", balance=0))
        outcomes = twice_at_once(lambda: pay(message))
        for outcome in sorted(outcomes, key=lambda outcome: outcome.verdict, reverse=True):
            print(f"payment-1 over 100: {outcome.verdict}, result {outcome.result}")
        try:
            pay(message | {"amount": 999})
        except PayloadMismatch as refusal:
            print(f"payment-1 over 999: {refusal.verdict}")
        with engine.connect() as connection:
            print(f"balance: {connection.scalar(select(account.c.balance))}, expected: 100")


if __name__ == "__main__":
    main()
