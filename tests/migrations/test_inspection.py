"""The comparison used to check the migrations can fail."""

from collections.abc import Callable, Sequence

import pytest
from sqlalchemy import CheckConstraint, Column, DefaultClause, Index, String, Table, text

from inbox.schema import Tables
from inbox_outbox_base.tables.inbox import _tables
from tests.support.database import Database
from tests.support.inspection import snapshot

pytestmark = pytest.mark.mysql


def column(table: Table) -> None:
    """Add a column."""
    table.append_column(Column("extra", String(10)))


def kind(table: Table) -> None:
    """Change a column's type."""
    table.c.result.type = String(99)


def nullability(table: Table) -> None:
    """Make a column nullable."""
    table.metadata.tables["inbox_status"].c.claim.nullable = True


def default(table: Table) -> None:
    """Change a default."""
    table.c.accepted_at.server_default = DefaultClause(text("'2020-02-02 02:02:02'"))


def check(table: Table) -> None:
    """Change the text of a CHECK, with the same name."""
    old = next(each for each in table.constraints if each.name == "inbox_message_key_not_empty")
    table.constraints.remove(old)
    table.append_constraint(CheckConstraint(table.c.key != "x", name="inbox_message_key_not_empty"))


def no_check(table: Table) -> None:
    """Remove a CHECK."""
    old = next(each for each in table.constraints if each.name == "inbox_message_key_not_empty")
    table.constraints.remove(old)


def index(table: Table) -> None:
    """Change the columns of an index, with the same name."""
    table.indexes.clear()
    Index("inbox_message_accepted_at", table.c.accepted_at)


def predicate(table: Table) -> None:
    """Turn an index into a partial one."""
    table.indexes.clear()
    where = table.c.digest.is_(None)
    columns = table.c.consumer, table.c.accepted_at
    Index("inbox_message_accepted_at", *columns, postgresql_where=where, sqlite_where=where)


def collation(table: Table) -> None:
    """Make text no longer compare byte for byte."""
    table.c.key.type = String(512)


def charset(table: Table) -> None:
    """Change the table's character set."""
    table.dialect_options["mysql"]["charset"] = "latin1"
    table.dialect_options["mariadb"]["charset"] = "latin1"


def autoincrement(table: Table) -> None:
    """Let numbers be reused."""
    table.metadata.tables["outbox_message"].dialect_options["sqlite"]["autoincrement"] = False


EVERYWHERE = ("postgresql", "mariadb", "mysql", "sqlite")
VISIBLE_ON: dict[Callable[[Table], None], Sequence[str]] = {
    column: EVERYWHERE,
    kind: EVERYWHERE,
    nullability: EVERYWHERE,
    default: EVERYWHERE,
    check: EVERYWHERE,
    no_check: EVERYWHERE,
    index: EVERYWHERE,
    predicate: ("postgresql", "sqlite"),
    collation: ("postgresql", "mariadb", "mysql"),
    charset: ("mariadb", "mysql"),
    autoincrement: ("sqlite",),
}


@pytest.mark.quick("postgresql", "mariadb", "sqlite")
def test_a_difference_is_seen(database: Database) -> None:
    """If the declarations differ in one point, the database made from them has a different snapshot."""
    before = created(database, _tables.__wrapped__(None))
    for alter in (alter for alter, databases in VISIBLE_ON.items() if database.name in databases):
        altered = _tables.__wrapped__(None)
        altered.message.metadata.drop_all(database.engine())
        alter(altered.message)
        assert created(database, altered) != before, alter.__doc__


def created(database: Database, declared: Tables) -> dict[str, object]:
    """The snapshot of a database made from these declarations."""
    engine = database.engine()
    declared.message.metadata.create_all(engine)
    return snapshot(engine)
