"""The statements of each message go to the driver as text, unless somebody listens: an application's
listeners hear of them, and change them, as SQLAlchemy says."""

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, Insert, event, select

from inbox import Inbox, Verdict
from inbox.schema import tables
from outbox import Outbox
from outbox.schema import tables as outbox_tables
from tests.support.database import Database
from tests.support.on_servers import SYNC, each_on, on

pytestmark = pytest.mark.mysql

WRITTEN = [tables().message.name, outbox_tables().message.name]


def write(connection: Connection) -> None:
    """A message comes in, and another one goes out."""
    assert Inbox("billing").accept(connection, "a") is Verdict.NEW
    Outbox().publish(connection, "orders", "first", "a", id="first")


@each_on("postgresql", "of", [lambda e, c: e, lambda e, c: c, lambda e, c: Engine], among=SYNC)
def test_a_listener_hears_of_each_statement(
    migrated: Database, of: Callable[[Engine, Connection], Any]
) -> None:
    """A listener of the engine, of the connection or of all engines is told of our INSERTs, before and after
    they run, and no longer once it is removed."""
    heard: list[tuple[str, str]] = []

    def hear(moment: str) -> Callable[..., None]:
        def note(_: Connection, statement: Any, *given: object) -> None:
            if isinstance(statement, Insert):
                heard.append((moment, statement.table.name))

        return note

    engine = migrated.engine()
    with engine.begin() as connection:
        write(connection)
        target = of(engine, connection)
        listeners = [(target, moment, hear(moment)) for moment in ("before_execute", "after_execute")]
        for each in listeners:
            event.listen(*each)
        try:
            Inbox("billing").accept(connection, "b")
            Outbox().publish(connection, "orders", "second", "a")
        finally:
            for each in listeners:
                event.remove(*each)
        Inbox("billing").accept(connection, "c")
    assert heard == [(moment, name) for name in WRITTEN for _, moment, _ in listeners]


@on(*SYNC)
def test_a_listener_changes_what_is_written(migrated: Database) -> None:
    """A listener may give our INSERTs other values, and another one their text, which it sees without the
    first one, too."""
    engine, texts = migrated.engine(), list[str]()

    def rename(_: Connection, statement: Any, several: Any, one: Any, options: Any) -> Any:
        changed = isinstance(statement, Insert) and statement.table.name in WRITTEN
        rows = [{**row, "key": "changed"} for row in several or [one]] if changed else several or [one]
        return statement, rows if several else [], {} if several else rows[0]

    def read(_: Connection, __: Any, text: str, given: Any, *___: Any) -> Any:
        texts.append(text)
        return f"{text} /* heard */", given

    event.listen(engine, "before_cursor_execute", read, retval=True)
    with engine.begin() as connection:
        write(connection)
    assert all(any(f"INTO {name}" in text for text in texts) for name in WRITTEN)
    event.listen(engine, "before_execute", rename, retval=True)
    with engine.begin() as connection:
        Inbox("billing").accept(connection, "b")
        Outbox().publish(connection, "orders", "second", "b")
    with engine.connect() as connection:
        for each in (tables().message, outbox_tables().message):
            assert sorted(connection.scalars(select(each.c.key))) == ["a", "changed"]
