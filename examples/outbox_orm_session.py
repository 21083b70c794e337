"""The outbox with the ORM: publish on the Session, and the message is written when it commits.

The message is written last, after the flush, when the transaction holds the locks of its business rows: if
two transactions change the same row, their messages have the order of the changes. Rolling back a savepoint
removes its messages; rolling back the transaction removes all of them.

    python -m examples.outbox_orm_session [--url URL]
"""

from sqlalchemy import String, func, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from examples._common import prepared
from examples._outbox import Printer, clear
from outbox import Outbox, Relay

TOPIC = "example.orders"


class Base(DeclarativeBase):
    """The example's models."""


class Order(Base):
    """A customer's order."""

    __tablename__ = "example_order"

    number: Mapped[str] = mapped_column(String(20), primary_key=True)
    item: Mapped[str] = mapped_column(String(20))


def place(session: Session, number: str, item: str) -> None:
    """Add an order to the session, and publish a message: both or neither."""
    session.add(Order(number=number, item=item))
    Outbox().publish(session, TOPIC, {"placed": number, "item": item}, key=number)
    if item == "unobtainium":
        raise LookupError(f"no {item}")


def main() -> None:
    with prepared(__doc__, Base.metadata) as engine:
        clear(engine, TOPIC)
        sessions = sessionmaker(engine)
        with sessions.begin() as session:
            place(session, "order-1", "tea")
            try:
                with session.begin_nested():
                    place(session, "order-2", "unobtainium")
            except LookupError as error:
                print(f"order-2: its savepoint is rolled back, {error}")
            place(session, "order-3", "coffee")
        print(f"messages relayed: {Relay(engine, Printer()).run_once()}")
        with sessions() as session:
            print(f"orders: {session.scalar(select(func.count()).select_from(Order))}, expected: 2")


if __name__ == "__main__":
    main()
