"""The contract between a check and a database: what the catalogue says about our tables."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import ClassVar

from sqlalchemy import Connection, Dialect, PrimaryKeyConstraint, Table, UniqueConstraint

from inbox_outbox_base.tables.columns import Bytewise
from inbox_outbox_base.words.findings import Finding

from .indexes import FoundIndex, LackingIndex, lacking_indexes, reflected

ADDED_BY_RELAYS = frozenset(f"outbox_{name}" for name in ("message", "sent", "dead", "gone", "relay"))
"""Tables to which relays add rows: one without a place stops a relay, and publishers do not notice."""


class Checking(ABC):
    """One subclass for each database."""

    named_indexes: ClassVar[Sequence[str]] = ()
    """Our indexes that statements name."""

    @abstractmethod
    def look(self, connection: Connection, tables: Sequence[Table]) -> list[Finding]:
        """Which tables cannot keep a promise, by one statement on the catalogue. It looks at those to which
        statements on this connection lead; one that does not exist has no finding, or is the database's
        error. It says of a table that another role of this session would find another one."""

    def session(self, connection: Connection) -> list[Finding]:
        """Settings of the session under which a promise cannot be kept, and which drivers do not know."""
        return []

    def said(self, connection: Connection) -> list[Finding]:
        """What somebody should know about the server before relays and publishers begin."""
        return []

    def run_at_once(self, connection: Connection) -> object:
        """For this transaction, let what waits for the COMMIT, such as a deferred trigger, run at once."""
        return None

    def is_read_only(self, connection: Connection) -> bool:
        """Whether the server or the transaction takes no writes."""
        return False

    def hides_rows(self, connection: Connection, tables: Sequence[Table]) -> list[str]:
        """The tables of which this role sees only some rows."""
        return []

    def lacking_indexes(self, connection: Connection, table: Table) -> Iterator[LackingIndex]:
        """Our indexes that this table lacks: nothing is wrong without them, but slow."""
        found = self._indexes(connection, table)
        return lacking_indexes(connection, table, found, self.named_indexes)

    def _indexes(self, connection: Connection, table: Table) -> Iterable[FoundIndex]:
        """The table's indexes in the database."""
        return reflected(connection, table)


def refused(table: str, why: str, to_do: str) -> Finding:
    """A table that cannot keep a promise, and what to do."""
    return Finding(f"table {table}", "refused", f"{why}; {to_do}")


Keys = Mapping[str, frozenset[str | None]]
"""The columns of what a database keeps unique, by name; None for an expression, or a part of a column."""


def wrong_keys(table: Table, valid: Keys, others: Keys) -> Iterator[Finding]:
    """Our keys that nothing in the database keeps unique, and keys that refuse rows which ours let in.
    `others` are unique, too, but not at once, or not for all rows."""
    own: set[frozenset[str | None]] = set()
    for constraint in table.constraints:
        if isinstance(constraint, PrimaryKeyConstraint | UniqueConstraint):
            key: frozenset[str | None] = frozenset(column.name for column in constraint.columns)
            own.add(key)
            # Some databases number rows, and have another column before the number in the key.
            first = getattr(constraint, "first", None)
            either = {key} if first is None else {key, key | {first}}
            if not either & set(valid.values()):
                names = ", ".join(column.name for column in constraint.columns)
                yield refused(
                    table.name,
                    f"no valid unique key on ({names}), so a row could be there twice",
                    "add the primary keys and constraints that `inbox-outbox migrate` makes",
                )
    every = {**valid, **others}
    further = [name for name, columns in every.items() if not any(key <= columns for key in own)]
    if further:
        why = f"unique key {', '.join(further)} refuses rows that our keys let in, as if these were there"
        yield refused(table.name, why, "drop it")


def references(table: str, names: Sequence[str]) -> Iterator[Finding]:
    """Foreign keys from our table to others."""
    if names:
        yield refused(table, f"foreign key {', '.join(names)} refuses rows of ours", "drop it")


def wrong_types(
    table: Table, dialect: Dialect, there: Mapping[str, str], holds: Callable[[str, str], bool]
) -> Iterator[Finding]:
    """Columns that could cut values or change them. `there` has the types in the database, and `holds` says
    whether such a type keeps every value of a declared one, whose name is in capitals."""
    wrong = [
        column.name
        for column in table.columns
        if column.name in there and not holds(column.type.compile(dialect=dialect), there[column.name])
    ]
    if wrong:
        why = f"the type of {', '.join(wrong)} cuts values, or changes or compares them in another way"
        yield refused(table.name, why, "give these columns the types that `inbox-outbox migrate` makes")


def unfilled(table: Table, required: Mapping[str, bool]) -> Iterator[Finding]:
    """Columns that refuse rows of ours, for want of a value. `required` has the columns that are NOT NULL
    in the database, and whether it fills them itself."""
    wrong = [name for name, is_filled in required.items() if _is_unfilled(table, name, is_filled=is_filled)]
    if wrong:
        why = f"{', '.join(wrong)} is NOT NULL, and rows of ours have no value there"
        yield refused(table.name, why, "let it be NULL, or give a column of your own a default")


def _is_unfilled(table: Table, name: str, *, is_filled: bool) -> bool:
    own = table.columns.get(name)
    if own is None:
        return not is_filled
    return bool(own.nullable) or (own.server_default is not None and not is_filled)


def incomplete(table: str, names: Sequence[str]) -> Iterator[Finding]:
    """Tables divided by ranges or lists that leave values out: our table, or partitions of it."""
    if names:
        why = f"{', '.join(names)} has no partition for the values that the others leave out"
        yield refused(table, f"{why}, so a relay would stop at one", "add one with MAXVALUE or DEFAULT")


def bytewise(table: Table) -> list[str]:
    """The columns that must compare byte for byte."""
    return [each.name for each in table.columns if isinstance(each.type, Bytewise)]


def hidden_rows(tables: Sequence[str]) -> str:
    """Why a role that sees only some rows cannot answer for all of them."""
    return (
        f"table {', '.join(tables)}: row-level policies hide rows from this role, so it would count, send or "
        "delete only some; give it BYPASSRLS, or a policy FOR ALL USING (true)"
    )


def referred_to(table: str, references: Sequence[str]) -> Finding:
    """Foreign keys of other tables that would keep our rows from being deleted."""
    return refused(
        table,
        f"foreign keys refer to it ({', '.join(references)}), so its rows could not be deleted",
        "drop them, or let them be ON DELETE CASCADE",
    )


def changing_triggers(table: str, names: Sequence[str]) -> Finding:
    """Triggers that run before a row is written."""
    return refused(
        table,
        f"trigger {', '.join(names)} runs before rows are written, and can change or drop them",
        "drop it, or let it run AFTER",
    )
