"""The contract between a check and a database: what the catalogue says about our tables."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence

from sqlalchemy import Connection, PrimaryKeyConstraint, Table, UniqueConstraint

from inbox_outbox_base.tables.columns import Bytewise
from inbox_outbox_base.words.findings import Finding


class Checking(ABC):
    """One subclass for each database."""

    @abstractmethod
    def look(self, connection: Connection, tables: Sequence[Table]) -> list[Finding]:
        """Which tables cannot keep a promise, by one statement on the catalogue. It looks at those to which
        statements on this connection lead; one that does not exist has no finding, or is the database's
        error."""

    def session(self, connection: Connection) -> list[Finding]:
        """Settings of the session under which a promise cannot be kept, and which drivers do not know."""
        return []

    def said(self, connection: Connection) -> list[Finding]:
        """What somebody should know about the server before relays and publishers begin."""
        return []

    def is_read_only(self, connection: Connection) -> bool:
        """Whether the server or the transaction takes no writes."""
        return False

    def hides_rows(self, connection: Connection, tables: Sequence[Table]) -> list[str]:
        """The tables of which this role sees only some rows."""
        return []


def refused(table: str, why: str, to_do: str) -> Finding:
    """A table that cannot keep a promise, and what to do."""
    return Finding(f"table {table}", "refused", f"{why}; {to_do}")


def missing_keys(table: Table, unique: Collection[frozenset[str | None]]) -> Iterator[Finding]:
    """The keys that nothing in the database keeps unique, given the columns of what it does keep unique."""
    for constraint in table.constraints:
        if isinstance(constraint, PrimaryKeyConstraint | UniqueConstraint):
            key = frozenset(column.name for column in constraint.columns)
            # Some databases number rows, and have another column before the number in the key.
            first = getattr(constraint, "first", None)
            either = {key} if first is None else {key, key | {first}}
            if not either & set(unique):
                names = ", ".join(column.name for column in constraint.columns)
                yield refused(
                    table.name,
                    f"no valid unique key on ({names}), so a row could be there twice",
                    "add the primary keys and constraints that `inbox-outbox migrate` makes",
                )


def bytewise(table: Table) -> dict[str, int]:
    """The columns that must compare byte for byte, with their longest value in bytes."""
    return {each.name: each.type.longest for each in table.columns if isinstance(each.type, Bytewise)}


def wrong_text(table: str, columns: Sequence[str]) -> Finding:
    """Columns whose values do not compare byte for byte, or are cut."""
    return refused(
        table,
        f"the text of {', '.join(columns)} is not compared byte for byte, or is cut",
        "give these columns the types that `inbox-outbox migrate` makes",
    )


def changing_triggers(table: str, names: Sequence[str]) -> Finding:
    """Triggers that run before a row is written."""
    return refused(
        table,
        f"trigger {', '.join(names)} runs before rows are written, and can change or drop them",
        "drop it, or let it run AFTER",
    )
