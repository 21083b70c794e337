"""The databases that are shown."""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import DBAPIError

from inbox import SqlStore, Store
from inbox.errors import InvalidOption
from inbox_outbox_base.checks.options import shown
from inbox_outbox_base.databases.registry import looking
from inbox_outbox_base.databases.taking import IMPATIENT, LEVEL

from ._kept import KeptAnswers
from ._pulse import Pulse

_NAME = re.compile(r"(?!static$)[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
SECONDS = 2.0
"""How long a statement of a page may take."""

Show = Callable[[str, str, bytes], str | None]


class Site:
    """One database.

    Attributes:
        name: the name that the pages are under; None if there is one database.
        engine: for decisions.
        reading: for everything else: its transactions cannot write, and its statements take `SECONDS` at
            most.
        stores: for decisions about messages of status-table mode; those in the database first.
        records: the same for everything else.
        show: makes text of a payload, for a user.
    """

    def __init__(
        self,
        name: str | None,
        engine: Engine,
        stores: Sequence[Store],
        schema: str | None,
        show: Show | None = None,
    ) -> None:
        self.name, self.engine, self.schema, self.show = name, engine, schema, show
        self.reading = _reading(engine)
        self.stores = (SqlStore(engine, schema=schema), *stores)
        self.records = (SqlStore(self.reading, schema=schema), *stores)
        self.pulse = Pulse(self.reading, schema)
        self.kept = KeptAnswers()


def sites_of(engine: Any, stores: Any, schema: str | None, show: Show | None) -> list[Site]:
    """The databases of `app`.

    Raises:
        InvalidOption: not an Engine, or a mapping of names to Engines; or a name that cannot be part of an
            address.
    """
    if not isinstance(engine, Mapping):
        return [Site(None, _usable("engine", engine), _stores(stores), schema, show)]
    if not isinstance(stores, Mapping):
        if [*stores]:
            raise InvalidOption("stores: expected a mapping with names of `engine`, because that is one")
        stores = {}
    if strange := {*stores} - {*engine}:
        raise InvalidOption(f"stores: {shown(strange.pop())}: expected a name of `engine`")
    for name in engine:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            expected = "1 to 64 letters, digits, dots, hyphens, underscores, and not static"
            raise InvalidOption(f"engine: {shown(name)}: expected {expected}")
    return [
        Site(name, _usable(f"engine[{name!r}]", each), _stores(stores.get(name, ())), schema, show)
        for name, each in engine.items()
    ]


def _usable(option: str, engine: Any) -> Engine:
    if not isinstance(engine, Engine) or engine.dialect.is_async:
        raise InvalidOption(f"{option}={type(engine).__name__}: expected an Engine")
    return engine


def _stores(given: Any) -> list[Store]:
    found = [*given]
    for each in found:
        if not isinstance(each, Store) or each.is_async or isinstance(each, SqlStore):
            raise InvalidOption(
                f"stores: {shown(each)}: expected RedisStores; those of the engine are shown anyway"
            )
    return found


def _reading(engine: Engine) -> Engine:
    """The engine, with the same pool, in transactions that can only look."""
    looker = looking(engine.dialect.name)
    own = engine.execution_options(**{IMPATIENT: True})

    def begin(connection: Connection) -> None:
        if connection.get_execution_options().get(LEVEL) != "AUTOCOMMIT":
            looker.restrict(connection, SECONDS)

    def end(connection: Connection) -> None:
        if connection.get_execution_options().get(LEVEL) != "AUTOCOMMIT" and not connection.invalidated:
            with suppress(DBAPIError):  # then the connection is broken, and does not return to the pool
                looker.unrestrict(connection)

    event.listen(own, "begin", begin)
    event.listen(own, "commit", end)
    event.listen(own, "rollback", end)
    return own
