"""One process of a shop, on the version of this project that is in PYTHONPATH. It imports nothing else of the
repository, and runs until it is killed.

Orders are published with their row. Relays write messages to a table, `arrival`, that stands for a broker: it
keeps them, and each consumer reads all of them, so that both versions get every message.
"""

import json
import sys
import time
from collections.abc import Callable, Sequence

from sqlalchemy import URL, Connection, Engine, create_engine, make_url, text

import inbox
from inbox import Backoff, Claim, Inbox, SqlStore, StatusInbox, is_transient
from outbox import Accepted, Envelope, Outbox, Outcome, Relay

KEYS = 5
TABLES = (
    "CREATE TABLE turn (taken INTEGER)",
    "INSERT INTO turn VALUES (0)",
    "CREATE TABLE sale (number INTEGER PRIMARY KEY, version VARCHAR(20))",
    "CREATE TABLE invoice (number INTEGER, version VARCHAR(20))",
    "CREATE TABLE shipment (number INTEGER, version VARCHAR(20))",
)
_LEFT = text("SELECT (SELECT count(*) FROM sale) - (SELECT count(*) FROM shipment)")
_NEXT = text("SELECT coalesce(max(number), 0) + 1 FROM sale")
_SALE = text("INSERT INTO sale VALUES (:number, :version)")
_ARRIVE = text("INSERT INTO arrival (number, version) VALUES (:number, :version)")
_ARRIVED = text("SELECT id, number FROM arrival WHERE id > :id ORDER BY id LIMIT 20")
_INVOICE = text("INSERT INTO invoice VALUES (:number, :version)")
_SHIPMENT = text("INSERT INTO shipment VALUES (:number, :version)")
_VERSION = inbox.__version__


def publish(engine: Engine) -> None:
    """Sell, and publish each sale, unless 20 sales are not yet shipped. Publishers take turns, with a row
    that they lock: so messages of a key are in the order of their numbers."""
    outbox = Outbox()
    while True:
        time.sleep(0.02)
        with engine.begin() as connection:
            connection.execute(text("UPDATE turn SET taken = taken + 1"))
            if (connection.scalar(_LEFT) or 0) >= 20:
                continue
            number = connection.scalar(_NEXT)
            connection.execute(_SALE, {"number": number, "version": _VERSION})
            outbox.publish(connection, "sales", {"number": number}, key=f"key-{number % KEYS}")


class ArrivalTable:
    """The publisher of the relays."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def send(self, batch: Sequence[Envelope]) -> list[Outcome]:
        """Write each message, in a transaction of its own."""
        for each in batch:
            with self._engine.begin() as connection:
                number = json.loads(each.payload)["number"]
                connection.execute(_ARRIVE, {"number": number, "version": _VERSION})
        return [Accepted() for _ in batch]


def relay(engine: Engine) -> None:
    """Relay until the end."""
    Relay(engine, ArrivalTable(engine), lease=3, poll=0.1, backoff=Backoff(first=0.1, longest=0.5)).run()


def consume(engine: Engine) -> None:
    """Read all messages, and bill and ship each: two consumers, one of each mode."""

    @Inbox("billing").handler(engine, key=lambda number: number)
    def bill(connection: Connection, number: int) -> None:
        connection.execute(_INVOICE, {"number": number, "version": _VERSION})

    @StatusInbox("shipping", store=SqlStore(engine), lease=3, max_attempts=1_000).handler(
        key=lambda number: number
    )
    def ship(claim: Claim, number: int) -> int:
        values = {"number": number, "version": _VERSION}
        claim.step("pack", lambda: time.sleep(0.01))
        claim.transact("ship", lambda connection: connection.execute(_SHIPMENT, values).rowcount)
        return number

    read, left = 0, list[int]()
    while True:
        with engine.begin() as connection:
            rows = connection.execute(_ARRIVED, {"id": read}).all()
        read = max([read, *(row.id for row in rows)])
        left += [row.number for row in rows]
        if not left:
            time.sleep(0.05)
        left = [number for number in left if not (_is_taken(bill, number) and _is_taken(ship, number))]


def _is_taken(handle: Callable[[int], object], number: int) -> bool:
    """Whether the consumer has taken the message, now or before; if not, it has to be delivered again."""
    try:
        handle(number)
    except Exception as error:
        if not is_transient(error):
            raise
        return False
    return True


def main(role: str, url: URL) -> None:
    """Say which version runs, and run."""
    print(_VERSION, inbox.schema.REVISION, inbox.__file__, flush=True)
    {"publish": publish, "relay": relay, "consume": consume}[role](create_engine(url))


if __name__ == "__main__":
    main(sys.argv[1], make_url(sys.argv[2]))
