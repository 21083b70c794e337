"""Business rows for the tests: accounts that a handler adds to. Adding is not idempotent, so a duplicate
shows."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Engine, Integer, String, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column


class Base(DeclarativeBase):
    """The application's own tables."""


class Account(Base):
    """A total that every run of a handler changes."""

    __tablename__ = "account"

    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    total: Mapped[int] = mapped_column(Integer)


def make(engine: Engine, names: Sequence[str] = ("cash",)) -> Engine:
    """Create the table with these accounts, all with a total of zero; return the engine."""
    Base.metadata.create_all(engine)
    with engine.begin() as connection:
        connection.execute(insert(Account), [{"name": name, "total": 0} for name in names])
    return engine


def add(handle: Connection | Session, name: str = "cash", amount: int = 1) -> None:
    """Add to an account, in the caller's transaction."""
    handle.execute(_added(name, amount))


async def add_async(handle: AsyncConnection | AsyncSession, name: str = "cash", amount: int = 1) -> None:
    """`add` on an asynchronous connection or session."""
    await handle.execute(_added(name, amount))


def open_account(handle: Connection | Session, name: str = "cash") -> None:
    """Insert an account; IntegrityError if it exists."""
    handle.execute(insert(Account), [{"name": name, "total": 0}])


def totals(engine: Engine) -> Mapping[str, int]:
    """The committed total of each account."""
    with engine.connect() as connection:
        return {row.name: row.total for row in connection.execute(select(Account.name, Account.total))}


def total(engine: Engine, name: str = "cash") -> int:
    """The committed total of one account."""
    return totals(engine)[name]


def _added(name: str, amount: int) -> Any:
    return update(Account).where(Account.name == name).values(total=Account.total + amount)
