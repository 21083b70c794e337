"""The listener: it takes a batch of messages from a broker, and returns one decision for each.

The broker of this example is a list. Like Kafka, it stores an offset up to which messages are acknowledged,
and goes on from there. So the listener works in order: it runs nothing behind a failed message, which the
broker redelivers. A message that can never succeed becomes a dead letter, and does not block the others. On
SIGTERM the running message finishes, and the rest of its batch is given back.

    python -m examples.inbox_listener [--url URL]
"""

import logging
from collections.abc import Callable
from typing import TypedDict

from sqlalchemy import Column, Connection, Engine, Integer, MetaData, String, Table, insert, select, update

from examples._common import CONSUMER, prepared
from inbox import Decision, Inbox, Listener, Outcome

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


Handler = Callable[[Payment], Outcome]
PAYMENTS = [
    Payment(id="payment-1", name="alice", amount=100),
    Payment(id="payment-1", name="alice", amount=100),  # the producer got no answer, and sent it again
    Payment(id="payment-2", name="bob", amount=50),  # his account will be opened in a moment
    Payment(id="payment-1", name="alice", amount=999),  # another payment that reuses a key
    Payment(id="payment-3", name="alice", amount=5),
]


def main() -> None:
    logging.getLogger("inbox.listener").setLevel(logging.CRITICAL)  # the decisions say the same
    inbox = Inbox(CONSUMER)
    with prepared(__doc__, metadata) as engine:

        @inbox.handler(engine, key=lambda message: message["id"], payload=lambda message: message)
        def pay(connection: Connection, message: Payment) -> None:
            balance = account.c.balance + message["amount"]
            this = account.c.name == message["name"]
            if not connection.execute(update(account).where(this).values(balance=balance)).rowcount:
                raise LookupError(f"no account: {message['name']}")

        listener = inbox.listener(order="in_order", dead_letter=put_away)
        open_account(engine, "alice")
        with listener.stopping_on_sigterm():
            offset = run_batch(listener, 0, pay)
            open_account(engine, "bob")
            run_batch(listener, offset, pay)
        with engine.connect() as connection:
            for name, balance in connection.execute(select(account).order_by(account.c.name)):
                print(f"{name}: {balance}")


def run_batch(listener: Listener, offset: int, pay: Handler) -> int:
    """Let the listener run the messages that are not acknowledged yet; return the new offset."""
    messages = PAYMENTS[offset:]
    decisions = listener.decide(messages, pay)
    for message, decision in zip(messages, decisions, strict=True):
        print(f"{message['id']} over {message['amount']}: {decision.action}, {decision.reason}")
    print(f"acknowledged: {decisions.acknowledged} of {len(messages)}")
    return offset + decisions.acknowledged


def put_away(message: Payment, decision: Decision) -> None:
    """A real program would publish it to a dead letter topic."""
    print(f"dead letter: {message['id']} over {message['amount']}, {decision.reason}")


def open_account(engine: Engine, name: str) -> None:
    with engine.begin() as connection:
        connection.execute(insert(account).values(name=name, balance=0))


if __name__ == "__main__":
    main()
