"""The outbox's part in `inbox.retry(..., deliver=True)`, which finds this by its name."""

from collections.abc import Sequence
from functools import cache
from typing import Any

from sqlalchemy import CompoundSelect, Connection, String, bindparam, literal, select, union_all

from inbox_outbox_base.checks.missing import is_there, missing_table
from inbox_outbox_base.errors.outbox import InvalidOption, TablesMissing
from inbox_outbox_base.words.outgoing import Draft, Message
from inbox_outbox_base.words.redelivered import AGAIN, headers_of_first
from outbox._publishing.drafts import encoded
from outbox._publishing.outbox import Outbox
from outbox.schema import OutboxTables

from . import statements
from .writing import change, lock_letter, revive


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
        """Write messages, each with the id that it has and its time, in their order. One that is held here,
        or dead because its handler has refused it, was delivered directly: it is retried instead.

        Raises:
            WrongState: somebody has just changed such a message.
        """
        ids = [first_id for _, first_id, _ in messages]
        found = connection.execute(_set_aside(self.tables), {"these": ids}).all()
        aside = {(each.id, each.topic, each.key): each for each in found}
        drafts: list[Draft] = []
        for message, first_id, created_at in messages:
            own = aside.get((first_id, message.topic, message.key))
            if own is None:
                drafts.append(self._draft(message, first_id, created_at))
                continue
            self._write(connection, drafts)
            drafts = []
            if own.state == "held":
                change(connection, statements.let_go_one(self.tables), own)
            else:
                revive(connection, self.tables, [lock_letter(connection, self.tables, first_id)])
        self._write(connection, drafts)

    def _draft(self, message: Message, first_id: str, created_at: str | None) -> Draft:
        (draft,) = self._drafts.of([message])
        headers = {**message.headers, **headers_of_first(first_id, created_at)}
        draft.row |= {"id": AGAIN + draft.row["id"], "headers": encoded(headers)}
        return draft


@cache
def _set_aside(tables: OutboxTables) -> CompoundSelect[Any]:
    """Which of some messages are held, or dead because they were refused: they have not left."""
    parts = []
    for table, state in ((tables.message, "held"), (tables.dead, "refused")):
        c = table.c
        is_aside = (c.state if state == "held" else c.outcome) == literal(state, String)
        number = (c.sequence if "sequence" in c else literal(0)).label("sequence")
        columns = c.id, c.topic, c.key, c.bucket, number, literal(state, String).label("state")
        parts.append(select(*columns).where(is_aside, c.id.in_(bindparam("these", expanding=True))))
    return union_all(*parts)
