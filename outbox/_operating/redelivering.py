"""The outbox's part in `inbox.retry(..., deliver=True)`, which finds this by its name."""

from collections.abc import Sequence

from sqlalchemy import Connection

from inbox_outbox_base.checks.missing import is_there, missing_table
from inbox_outbox_base.errors.outbox import InvalidOption, TablesMissing
from inbox_outbox_base.words.outgoing import Draft, Message
from inbox_outbox_base.words.redelivered import AGAIN, headers_of_first
from outbox._publishing.drafts import encoded
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

    def refusal(self, message: Message, first_id: str = "", created_at: str | None = None) -> str | None:
        """Why the outbox cannot take a message; None if it can."""
        try:
            self._draft(message, first_id, created_at)
        except InvalidOption as error:
            return str(error)
        return None

    def redeliver(self, connection: Connection, messages: Sequence[tuple[Message, str, str | None]]) -> None:
        """Write messages, each with the id that it has and its time, in their order."""
        self._write(connection, [self._draft(*each) for each in messages])

    def _draft(self, message: Message, first_id: str, created_at: str | None) -> Draft:
        (draft,) = self._drafts.of([message])
        headers = {**message.headers, **headers_of_first(first_id, created_at)}
        draft.row |= {"id": AGAIN + draft.row["id"], "headers": encoded(headers)}
        return draft
