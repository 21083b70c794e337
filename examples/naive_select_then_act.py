"""The first naive way: check whether the message was seen, act if not, record that it was seen.

Two deliveries of the same message check at the same time. Neither finds a record, because neither has
committed one yet, so both act: one payment of 100 makes the balance 200. Nothing fails, and nothing is
logged. Both deliveries use transactions; READ COMMITTED does not help.

    python -m examples.naive_select_then_act [--url URL]
"""

from threading import Barrier

from sqlalchemy import Column, Engine, Integer, MetaData, String, Table, insert, select, update

from examples._common import PATIENCE, prepared, twice_at_once

metadata = MetaData()
account = Table(
    "example_account",
    metadata,
    Column("name", String(20), primary_key=True),
    Column("balance", Integer, nullable=False),
)
seen = Table("example_seen", metadata, Column("message", String(20), index=True))


def handle(engine: Engine, message: str, both_have_looked: Barrier) -> str:
    """Add 100 to the account unless the message was seen; the barrier makes the race happen every time."""
    with engine.begin() as connection:
        is_new = connection.execute(select(seen).where(seen.c.message == message)).first() is None
        both_have_looked.wait()
        if not is_new:
            return "seen before"
        connection.execute(update(account).values(balance=account.c.balance + 100))
        connection.execute(insert(seen).values(message=message))
        return "acted"


def main() -> None:
    with prepared(__doc__, metadata) as engine:
        with engine.begin() as connection:
            connection.execute(insert(account).values(name="alice", balance=0))
        both_have_looked = Barrier(2, timeout=PATIENCE)
        results = twice_at_once(lambda: handle(engine, "payment-1", both_have_looked))
        with engine.connect() as connection:
            balance = connection.scalar(select(account.c.balance))
        print(f"two deliveries of payment-1: {', '.join(results)}")
        print(f"balance: {balance}, expected: 100")


if __name__ == "__main__":
    main()
