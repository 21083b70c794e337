"""The shop whose messages the handlers take: its tables, its messages, and what is in its books."""

from collections import Counter
from collections.abc import Callable
from typing import Any

from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from inbox_outbox.faults import FaultReport, exactly_once
from tests.servers import ASYNC_DRIVERS
from tests.support.database import Database


def messages(run: int) -> list[dict[str, Any]]:
    """One order."""
    return [{"order": f"order-{run}", "cents": 500}]


class Shop:
    """A database with the tables of the shop."""

    def __init__(self, database: Database) -> None:
        self._database = database
        # A restart of the server breaks what a pool keeps.
        self._engine = create_engine(database.url, poolclass=NullPool)
        with self._engine.begin() as connection:
            connection.execute(text("CREATE TABLE bill (id VARCHAR(200), cents INTEGER)"))
            connection.execute(text("CREATE TABLE seen (id VARCHAR(200) PRIMARY KEY)"))

    @property
    def url(self) -> str:
        """Where it is."""
        return self._database.url.render_as_string(hide_password=False)

    @property
    def environ(self) -> dict[str, str]:
        """The environment variables that the handlers read."""
        driver = ASYNC_DRIVERS[self._database.url.get_backend_name()]
        asynchronous = self._database.url.set(drivername=driver).render_as_string(hide_password=False)
        return {"SHOP_URL": self.url, "SHOP_ASYNC_URL": asynchronous}

    def bills(self) -> Counter[tuple[str, int]]:
        """The effects: how often each bill is there."""
        with self._engine.connect() as connection:
            rows = connection.execute(text("SELECT id, cents FROM bill"))
            return Counter((name, cents) for name, cents in rows)

    def under_faults(self, handler: Callable[[Any], Any] | str, **options: Any) -> FaultReport:
        """What the kit says about a handler."""
        options["environ"] = self.environ | options.get("environ", {})
        given: dict[str, Any] = {"messages": messages, "url": self.url, "effects": self.bills} | options
        return exactly_once(handler, **given)
