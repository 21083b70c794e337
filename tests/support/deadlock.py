"""A deadlock on MariaDB and MySQL, whose victim is known, and procedures that meet one."""

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, Engine
from sqlalchemy.orm import Session

from tests.support import accounts
from tests.support.together import Task, wait_until_blocked

ADDS = "UPDATE account SET total = total + 1 WHERE name = 'account 1'"
"""A statement that meets the deadlock."""
ACCOUNTS = [*(f"account {number}" for number in range(20)), "cash"]


class heavier_transaction:  # noqa: N801 - reads as a function in the `with` that it is made for
    """Another transaction, which has written so much more that the server picks ours as the deadlock's
    victim: it waits for "cash", which ours holds, and adds 100 to each of the other accounts."""

    def __init__(self, engine: Engine, handle: Connection | Session) -> None:
        self._engine = engine
        accounts.add(handle)

    def __enter__(self) -> None:
        self._other = self._engine.connect()
        for name in ACCOUNTS[:-1]:
            accounts.add(self._other, name, amount=100)
        self._waiting = Task(lambda: accounts.add(self._other, amount=0))
        wait_until_blocked(self._engine)

    def __exit__(self, *_: object) -> None:
        self._waiting.result()
        self._other.commit()
        self._other.close()


@contextmanager
def procedure(engine: Engine, name: str, body: str) -> Iterator[None]:
    """A stored procedure inside the block: a copied database keeps it."""
    with engine.connect() as connection:
        connection.exec_driver_sql(f"CREATE PROCEDURE {name}() {body}")
        try:
            yield
        finally:
            connection.exec_driver_sql(f"DROP PROCEDURE {name}")
