"""The outbox's part in `inbox.retry(..., deliver=True)`, which finds this by its name."""

from sqlalchemy import Connection

from inbox_outbox_base.checks.missing import is_there, missing_table
from inbox_outbox_base.errors.outbox import InvalidOption, TablesMissing
from inbox_outbox_base.words.outgoing import AGAIN, Message
from outbox._publishing.outbox import Outbox


class RedeliveringOutbox(Outbox):
    """Publishes again what an inbox keeps, in the inbox's transaction.

    Each message gets an id that says so, and that no broker has seen: some drop a message whose id they know.
    """

    def __init__(self, schema: str | None) -> None:
        super().__init__(schema=schema, trace=False)

    def check(self, connection: Connection) -> None:
        """Look for the tables.

        Raises:
            TablesMissing: there is no outbox in this database.
        """
        if not is_there(connection, self.tables.message):
            raise TablesMissing(missing_table(self.tables.message))

    def refusal(self, message: Message) -> str | None:
        """Why the outbox cannot take a message; None if it can."""
        try:
            self._drafts.of([message])
        except InvalidOption as error:
            return str(error)
        return None

    def redeliver(self, connection: Connection, messages: list[Message]) -> None:
        """Write messages, in their order."""
        drafts = self._drafts.of(messages)
        for draft in drafts:
            draft.row["id"] = AGAIN + draft.row["id"]
        self._write(connection, drafts)
