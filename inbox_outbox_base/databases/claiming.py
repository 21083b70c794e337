"""The contract between status-table mode and a database, with portable defaults."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from inbox_outbox_base.errors import codes
from inbox_outbox_base.tables.inbox import Tables

from . import claiming_statements

Fields = Mapping[Any, Any]
"""The values of a record, by column."""


class Claiming:
    """One subclass for each database; this class holds the portable defaults."""

    def add(self, connection: Connection, tables: Tables, new: dict[str, Any]) -> None:
        """Insert a record unless there is one."""
        raise NotImplementedError

    def add_or_look(
        self, connection: Connection, tables: Tables, new: dict[str, Any]
    ) -> tuple[datetime, Fields | int] | None:
        """The database's clock, and the record if there was one, else the new record's token; None if the
        record was deleted in between."""
        where = {"consumer_": new["consumer"], "key_": new["key"]}
        now, found = self.look(connection, tables, where)
        if found is None:
            self.add(connection, tables, new)
            now, found = self.look(connection, tables, where)
            if found is not None and found["claim"] == new["claim"]:
                return now, int(found["token"])
        return None if found is None else (now, found)

    def look(
        self, connection: Connection, tables: Tables, where: dict[str, Any]
    ) -> tuple[datetime, Fields | None]:
        """The database's clock, and the record if there is one."""
        row = connection.execute(claiming_statements.look(tables), where).mappings().one()
        return row["now"], None if row["token"] is None else row

    def renew(self, connection: Connection, tables: Tables, claims: dict[str, Any], lease: float) -> None:
        """Renew the leases of some claims, in seconds; skip locked rows.

        It renews one by one: an UPDATE cannot skip locked rows, and with a list of rows, MySQL's optimizer
        may scan more than these and wait for others.
        """
        unlocked = connection.execute(claiming_statements.unlocked(tables), claims).all()
        statement = claiming_statements.write(tables, frozenset({"lease"}), claiming_statements.HELD)
        for row in unlocked:
            held = {"consumer_": claims["consumer_"], "key_": row.key, "token_": row.token}
            try:
                connection.execute(statement, held | {"lease": lease})
            except DBAPIError as error:
                if not codes.ends_wait(error):  # otherwise somebody has just locked it
                    raise

    def lock(self, connection: Connection, tables: Tables, held: dict[str, Any]) -> object:
        """Lock the record against everybody else until the transaction ends, if it has one of the claims that
        are expected.

        Return what `has_committed` needs; None if the claim is lost.
        """
        statement = claiming_statements.write(tables, frozenset({"claim"}), claiming_statements.HELD)
        statement = claiming_statements.expecting(tables, statement)
        return held["claim"] if connection.execute(statement, held).rowcount == 1 else None

    def has_committed(
        self, connection: Connection, tables: Tables, where: dict[str, Any], locked: object
    ) -> bool:
        """Whether a transaction that has locked the record, and is over, has committed."""
        _, found = self.look(connection, tables, where)
        return found is not None and found["claim"] == locked

    def record_step(self, connection: Connection, tables: Tables, step: dict[str, Any]) -> bool:
        """In the same transaction, record a step; False if the transaction was undone in between."""
        return connection.execute(claiming_statements.record_step(tables), step).rowcount == 1
