"""A producer that got no answer and publishes the same order again; the consumer's inbox takes it once.

The service commits the order's message, and then its answer gets lost: the client's request times out, so the
client repeats it. The second message has a new id, so message ids cannot show that it is the same order. The
key can: the client generated it, and repeats it. So the consumer's key is the message's key
(`inbox.message_key`).

    python -m examples.outbox_resend [--url URL]
"""

from collections.abc import Callable

from sqlalchemy import Column, Connection, Engine, MetaData, String, Table, func, insert, select

from examples._common import CONSUMER, prepared
from examples._outbox import clear
from inbox import Inbox, Outcome, message_key
from outbox import DirectDelivery, Envelope, Outbox, Relay

TOPIC = "example.orders"

metadata = MetaData()
parcel = Table("example_parcel", metadata, Column("order", String(20), nullable=False))


def request(engine: Engine, order: str, *, is_answered: bool) -> str:
    """Handle a request of the service, with or without an answer; return the message's id."""
    with engine.begin() as connection:
        message = Outbox().publish(connection, TOPIC, {"order": order}, key=order)
    if not is_answered:
        raise TimeoutError
    return message


def order(engine: Engine, number: str) -> None:
    """A client that repeats its request until it gets an answer."""
    try:
        request(engine, number, is_answered=False)
    except TimeoutError:
        print(f"{number}: the request timed out, though it was committed")
        request(engine, number, is_answered=True)
        print(f"{number}: repeated, and answered")


def shipping(engine: Engine) -> Callable[[Envelope], Outcome]:
    """The consumer: it ships a parcel for each order that it takes."""

    @Inbox(CONSUMER).handler(engine, key=message_key)
    def ship(connection: Connection, message: Envelope) -> None:
        connection.execute(insert(parcel).values(order=message.key))

    return ship


def main() -> None:
    with prepared(__doc__, metadata) as engine:
        clear(engine, TOPIC)
        ship = shipping(engine)
        ids = set()

        def tell(message: Envelope) -> Outcome:
            outcome = ship(message)
            ids.add(message.id)
            print(f"shipping takes {message.key}, message {len(ids)}: {outcome.verdict}")
            return outcome

        order(engine, "order-1")
        print(f"messages relayed: {Relay(engine, DirectDelivery({TOPIC: tell})).run_once()}")
        with engine.connect() as connection:
            print(f"parcels: {connection.scalar(select(func.count()).select_from(parcel))}, expected: 1")


if __name__ == "__main__":
    main()
