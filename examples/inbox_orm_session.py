"""The inbox with the ORM: give the decorator a sessionmaker, and the handler gets a Session.

The handler reads an object, changes it in Python and returns: the flush, the inbox row and the COMMIT are one
transaction. The handler itself neither commits nor rolls back.

    python -m examples.inbox_orm_session [--url URL]
"""

from dataclasses import dataclass
from operator import attrgetter

from sqlalchemy import String
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from examples._common import CONSUMER, prepared, twice_at_once
from inbox import Inbox


@dataclass(frozen=True)
class Payment:
    """A message as a broker would deliver it."""

    id: str
    name: str
    amount: int


class Base(DeclarativeBase):
    """The example's models."""


class Account(Base):
    """A bank account."""

    __tablename__ = "example_account"

    name: Mapped[str] = mapped_column(String(20), primary_key=True)
    balance: Mapped[int] = mapped_column(default=0)


def main() -> None:
    inbox = Inbox(CONSUMER)
    message = Payment(id="payment-1", name="alice", amount=100)
    with prepared(__doc__, Base.metadata) as engine:
        sessions = sessionmaker(engine)

        @inbox.handler(sessions, key=attrgetter("id"))
        def pay(session: Session, message: Payment) -> int:
            account = session.get_one(Account, message.name)
            account.balance += message.amount
            return account.balance

        with sessions.begin() as session:
            session.add(Account(name="alice"))
        outcomes = twice_at_once(lambda: pay(message))
        for outcome in sorted(outcomes, key=lambda outcome: outcome.verdict, reverse=True):
            print(f"payment-1: {outcome.verdict}, result {outcome.result}")
        with sessions() as session:
            print(f"balance: {session.get_one(Account, 'alice').balance}, expected: 100")


if __name__ == "__main__":
    main()
