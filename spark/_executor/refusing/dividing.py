"""Applies rows of which the target refuses some: halves the rows until each part is accepted, or has one row.
Each part is tried in a savepoint of its own.

PostgreSQL keeps a lock for each savepoint that was released, and all sessions of a server share the room for
locks. So once there are many, all parts are rolled back, and the accepted rows applied again as one.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
from sqlalchemy import Connection, NestedTransaction

from inbox_outbox_base.databases.loading import Loading
from inbox_outbox_base.errors.spark import InvalidRow
from spark._executor.failures import is_of_a_row, told
from spark._executor.filling import Filling
from spark._executor.spool import KEY
from spark._options.settings import WriterSettings

from .content import content

_MOST_PARTS = 200
"""The most savepoints that are released, unless the rows are refused together."""
_NAMES_COLUMN = re.compile(r"^column |, column \S+$")
"""An error of the writer's, or of the database (PostgreSQL, for NOT NULL), that says which column it is."""


@dataclass(frozen=True, slots=True)
class RefusedRow:
    """A row that the target refuses."""

    key: str
    error: str
    """Without values; it names the column, if that can be found out."""
    content: str
    """The row as JSON."""


class Dividing:
    """Applies tables of rows with their stored keys.

    Args:
        publish: publishes the messages of applied rows.
        refused: gets each row that cannot be applied.
    """

    def __init__(
        self,
        connection: Connection,
        database: Loading,
        settings: WriterSettings,
        publish: Callable[[pa.Table], None],
        refused: Callable[[RefusedRow], None],
    ) -> None:
        self._connection = connection
        self._database = database
        self._settings = settings
        self._publish = publish
        self._refused = refused
        self._filling: Filling | None = None
        self._blamed: dict[str, list[str]] = {}
        """By the text of an error, the columns that were to blame for the first row with it."""

    def apply(self, rows: pa.Table) -> int:
        """Apply the rows, except those that are refused; with inbox="table", return how many were new."""
        updated = self.updated
        self._made_filling(rows.drop_columns([KEY]).schema)  # outside the savepoints: its tables stay
        whole = self._connection.begin_nested()
        applied, parts, most = 0, [rows], _MOST_PARTS
        accepted: list[pa.Table] = []
        refused: list[RefusedRow] = []
        while parts:
            part = parts.pop()
            done = self._tried(part)
            if isinstance(done, int):
                applied += done
                accepted.append(part)
            elif part.num_rows == 1:
                refused.append(self._refusal(part, done))
                if self._settings.bad_rows == "fail":
                    break
            else:
                parts += _halves(part)
            if len(accepted) > most:
                self._undo(whole, updated)
                whole = self._connection.begin_nested()
                together = pa.concat_tables(accepted)
                done = self._tried(together)
                applied, accepted = (done, [together]) if isinstance(done, int) else (0, [])
                if not accepted:  # they are accepted one after the other only
                    parts += _halves(together)
                    most *= 2
        whole.commit()
        for row in refused:  # not before: their own rows would be rolled back, too
            self._refused(row)
        return applied

    @property
    def updated(self) -> int:
        """How many rows of the targets an Upsert has updated."""
        return 0 if self._filling is None else self._filling.updated

    def _tried(self, rows: pa.Table, *, is_kept: bool = True) -> int | BaseException:
        """Apply the rows; return how many were new, or the error with which one of them is refused."""
        given = rows.drop_columns([KEY])
        filling = self._made_filling(given.schema)
        filling.again()
        savepoint, updated = self._connection.begin_nested(), self.updated
        try:
            filling.add(given)
            applied = filling.finish()
        except BaseException as error:
            if not is_of_a_row(error):
                raise
            self._undo(savepoint, updated)
            return error
        try:
            self._publish(rows)
        except InvalidRow as error:  # an error of the database would be about a table of the outbox
            self._undo(savepoint, updated)
            return error
        if is_kept:
            savepoint.commit()
        else:
            self._undo(savepoint, updated)
        return applied

    def _undo(self, savepoint: NestedTransaction, updated: int) -> None:
        # First the savepoints in it, which an error has left open.
        while (inner := self._connection.get_nested_transaction()) not in (None, savepoint):
            inner.rollback()
        savepoint.rollback()
        if self._filling is not None:
            self._filling.updated = updated

    def _made_filling(self, schema: pa.Schema) -> Filling:
        if self._filling is None:
            self._filling = Filling(
                self._connection, self._database, self._settings, schema, is_repeated=True
            )
        return self._filling

    def _refusal(self, part: pa.Table, error: BaseException) -> RefusedRow:
        key, row = part.column(KEY)[0].as_py(), part.drop_columns([KEY])
        return RefusedRow(key, self._told(part, error), content(row))

    def _told(self, row: pa.Table, error: BaseException) -> str:
        text = told(error)
        names = [] if _NAMES_COLUMN.search(text) else self._to_blame(row, text)
        if not names:
            return text
        return f"{'column' if len(names) == 1 else 'columns'} {', '.join(map(repr, names))}: {text}"

    def _to_blame(self, row: pa.Table, text: str) -> list[str]:
        """The columns without whose values the row is accepted or, if there are none, refused for another
        reason."""
        known = self._blamed.get(text)  # mostly the same columns again: that saves trying all others
        if known is not None and all(self._without(row, name, text) for name in known):
            return known
        found = {
            field.name: better
            for field in row.schema
            if field.name != KEY and (better := self._without(row, field.name, text))
        }
        accepted = [name for name, better in found.items() if better == "accepted"]
        self._blamed[text] = accepted or [*found]
        return self._blamed[text]

    def _without(self, row: pa.Table, name: str, text: str) -> str | None:
        """What NULL in a column makes of a refused row; None if that changes nothing."""
        place = row.column_names.index(name)
        if row.column(place).null_count:
            return None
        field = row.schema.field(place)
        done = self._tried(row.set_column(place, field, pa.nulls(1, field.type)), is_kept=False)
        if isinstance(done, int):
            return "accepted"
        return None if told(done) == text else "refused for another reason"


def _halves(rows: pa.Table) -> list[pa.Table]:
    """Both halves, the first one last."""
    half = rows.num_rows // 2
    return [rows.slice(half), rows.slice(0, half)]
