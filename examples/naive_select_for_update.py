"""The second naive way: lock the business row with SELECT ... FOR UPDATE, then check, then act.

1. The first message about an order creates its row. There is no row to lock yet, so FOR UPDATE locks nothing:
   two deliveries both find nothing, both insert, and the customer is charged twice. (MySQL and MariaDB at
   REPEATABLE READ lock the gap instead, allow both to do so, and then end one of them with a deadlock error;
   this example runs at READ COMMITTED.)
2. If the row exists, this works, provided that the table has a status column and it is checked after the lock
   was granted. But the lock is on business data: an unrelated change of the same order has to wait until the
   handler is done.

    python -m examples.naive_select_for_update [--url URL]
"""

import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event

from sqlalchemy import Column, Engine, Integer, MetaData, String, Table, func, insert, select, update
from sqlalchemy.exc import OperationalError

from examples._common import PATIENCE, prepared, twice_at_once

metadata = MetaData()
charge = Table(
    "example_charge",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("order_number", String(20), index=True),
    Column("status", String(20), nullable=False),
    Column("amount", Integer, nullable=False),
)


def charge_new_order(engine: Engine, order: str, both_have_looked: Barrier) -> str:
    """Insert the charge unless it exists; the barrier only makes the race happen every time."""
    locked = select(charge.c.id).where(charge.c.order_number == order).with_for_update()
    with engine.begin() as connection:
        row = connection.execute(locked).first()
        both_have_looked.wait()
        if row is not None:
            return "seen before"
        connection.execute(insert(charge).values(order_number=order, status="charged", amount=100))
        return "charged"


def charge_known_order(engine: Engine, order: str, locked: Event, finish: Event) -> str:
    """Charge an open order; the handler works between `locked` and `finish`."""
    this = charge.c.order_number == order
    with engine.begin() as connection:
        status = connection.scalar(select(charge.c.status).where(this).with_for_update())
        if status == "charged":
            return "seen before"
        locked.set()
        finish.wait(PATIENCE)
        connection.execute(update(charge).where(this).values(status="charged", amount=charge.c.amount + 100))
        return "charged"


def is_locked(engine: Engine, order: str) -> bool:
    """Whether another transaction would have to wait to change the order."""
    this = charge.c.order_number == order
    with engine.connect() as connection:
        try:
            connection.execute(select(charge.c.id).where(this).with_for_update(nowait=True))
        except OperationalError:
            return True
    return False


def first_message(engine: Engine) -> None:
    both_have_looked = Barrier(2, timeout=PATIENCE)
    results = twice_at_once(lambda: charge_new_order(engine, "order-1", both_have_looked))
    with engine.connect() as connection:
        total = connection.scalar(select(func.sum(charge.c.amount)))
    print(f"no row to lock, two deliveries: {', '.join(results)}")
    print(f"charged: {total}, expected: 100")


def later_message(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(insert(charge).values(order_number="order-2", status="open", amount=0))
    locked, finish = Event(), Event()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(charge_known_order, engine, "order-2", locked, finish)
        locked.wait(PATIENCE)
        second = pool.submit(charge_known_order, engine, "order-2", locked, finish)
        blocked = is_locked(engine, "order-2")
        finish.set()
        print(f"a row to lock, two deliveries: {first.result()}, {second.result()}")
    print(f"meanwhile an unrelated change of the order has to wait: {'yes' if blocked else 'no'}")


def main() -> None:
    with prepared(__doc__, metadata) as engine:
        if engine.dialect.name == "sqlite":
            sys.exit("SQLite has no row locks; SQLAlchemy silently drops FOR UPDATE there")
        read_committed = engine.execution_options(isolation_level="READ COMMITTED")
        first_message(read_committed)
        later_message(read_committed)


if __name__ == "__main__":
    main()
