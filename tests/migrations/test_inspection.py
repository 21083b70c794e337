"""The comparison that the migrations are judged by can fail."""

from collections.abc import Callable, Sequence

import pytest
from sqlalchemy import CheckConstraint, Column, DefaultClause, Index, String, Table, text

from inbox.schema import Tables
from inbox_outbox_base.tables.inbox import _tables
from tests.support.database import Database
from tests.support.inspection import snapshot

pytestmark = pytest.mark.mysql


def column(table: Table) -> None:
    """A column more."""
    table.append_column(Column("extra", String(10)))


def kind(table: Table) -> None:
    """Another type."""
    table.c.result.type = String(99)


def nullability(table: Table) -> None:
    """A column that may be empty."""
    table.metadata.tables["inbox_status"].c.claim.nullable = True


def default(table: Table) -> None:
    """Another default."""
    table.c.accepted_at.server_default = DefaultClause(text("'2020-02-02 02:02:02'"))


def check(table: Table) -> None:
    """A CHECK of the same name with another text."""
    old = next(each for each in table.constraints if each.name == "inbox_message_key_not_empty")
    table.constraints.remove(old)
    table.append_constraint(CheckConstraint(table.c.key != "x", name="inbox_message_key_not_empty"))


def no_check(table: Table) -> None:
    """A CHECK less."""
    old = next(each for each in table.constraints if each.name == "inbox_message_key_not_empty")
    table.constraints.remove(old)


def index(table: Table) -> None:
    """An index of the same name on other columns."""
    table.indexes.clear()
    Index("inbox_message_accepted_at", table.c.accepted_at)


def predicate(table: Table) -> None:
    """An index that became a partial one."""
    table.indexes.clear()
    where = table.c.digest.is_(None)
    columns = table.c.consumer, table.c.accepted_at
    Index("inbox_message_accepted_at", *columns, postgresql_where=where, sqlite_where=where)


def collation(table: Table) -> None:
    """Text that no longer compares byte for byte."""
    table.c.key.type = String(512)


def charset(table: Table) -> None:
    """Another character set of the table."""
    table.dialect_options["mysql"]["charset"] = "latin1"
    table.dialect_options["mariadb"]["charset"] = "latin1"


def autoincrement(table: Table) -> None:
    """Numbers that may come again."""
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


def test_a_difference_is_seen(database: Database) -> None:
    """A database made from declarations that differ in one point gives another snapshot."""
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
