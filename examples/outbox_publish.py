"""The outbox: a message is a row of the business transaction, and is sent if and only if that commits.

Two orders are placed, each with a message in the same transaction; the second one fails after publishing. A
program that sends to its broker itself has no right moment for it: before the COMMIT, it may announce
something that is then rolled back; after the COMMIT, it may die and never send. Here both are rows, and the
relay sends what was committed. This example's broker only prints; see `outbox.rabbitmq` and `outbox.kafka`.

    python -m examples.outbox_publish [--url URL]
"""

from sqlalchemy import Column, Engine, MetaData, String, Table, func, insert, select

from examples._common import prepared
from examples._outbox import Printer, clear, waiting
from outbox import Outbox, Relay

TOPIC = "example.orders"

metadata = MetaData()
order = Table("example_order", metadata, Column("number", String(20), primary_key=True))


def place(engine: Engine, number: str, *, in_stock: bool) -> None:
    """Write an order and its message: both or neither."""
    with engine.begin() as connection:
        connection.execute(insert(order).values(number=number))
        Outbox().publish(connection, TOPIC, {"placed": number}, key=number)
        if not in_stock:
            raise LookupError(f"{number} is sold out")


def main() -> None:
    with prepared(__doc__, metadata) as engine:
        clear(engine, TOPIC)
        place(engine, "order-1", in_stock=True)
        print("order-1: committed")
        try:
            place(engine, "order-2", in_stock=False)
        except LookupError as error:
            print(f"order-2: rolled back, {error}")
        print(f"messages waiting: {waiting(engine)}")
        print(f"messages relayed: {Relay(engine, Printer()).run_once()}")
        print(f"messages waiting: {waiting(engine)}")
        with engine.connect() as connection:
            print(f"orders: {connection.scalar(select(func.count()).select_from(order))}, expected: 1")


if __name__ == "__main__":
    main()
