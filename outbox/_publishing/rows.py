"""The rows of new messages."""

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from inbox_outbox_base.databases import relaying_statements
from inbox_outbox_base.databases.registry import relaying
from inbox_outbox_base.databases.relaying import Relaying, completed
from inbox_outbox_base.words.outgoing import Draft
from outbox.schema import OutboxTables

from .missing import raise_clearer


class Rows:
    """Writes messages to the tables."""

    def __init__(self, tables: OutboxTables) -> None:
        self._tables = tables

    def database(self, connection: Connection) -> Relaying:
        """The code for this connection's database.

        Raises the errors of `relaying`.
        """
        return relaying(connection.dialect.name, self._tables)

    def insert(self, connection: Connection, drafts: list[Draft]) -> list[Draft]:
        """Insert the rows; the database numbers them in this order. Return the drafts that were not added,
        because their ids are in use."""
        repeated: list[Draft] = []
        try:
            if any(draft.has_own_id for draft in drafts):
                drafts, repeated = self._divided(connection, drafts)
            at_once = [draft.row for draft in drafts if draft.due is None]
            if at_once:
                self.database(connection).add(connection, at_once)
            if len(at_once) < len(drafts):
                self._insert_delayed(connection, drafts)
        except DBAPIError as error:
            raise_clearer(connection, self._tables, error)
        return repeated

    def _insert_delayed(self, connection: Connection, drafts: list[Draft]) -> None:
        for from_clock in (False, True):
            later = [
                draft.row | {"due": draft.due}
                for draft in drafts
                if draft.due is not None and isinstance(draft.due, float) is from_clock
            ]
            if later:
                names = relaying_statements.columns(later)
                statement = relaying_statements.add_delayed(self._tables, names, from_clock=from_clock)
                connection.execute(statement, completed(later, names))

    def _divided(self, connection: Connection, drafts: list[Draft]) -> tuple[list[Draft], list[Draft]]:
        """The drafts whose ids are not in use (of several with one id, the first), and the others."""
        ids = sorted({draft.row["id"] for draft in drafts if draft.has_own_id})
        unused = self.database(connection).take_ids(connection, ids)
        new: list[Draft] = []
        repeated: list[Draft] = []
        for draft in drafts:
            is_new = not draft.has_own_id or draft.row["id"] in unused
            unused.discard(draft.row["id"])
            (new if is_new else repeated).append(draft)
        return new, repeated
