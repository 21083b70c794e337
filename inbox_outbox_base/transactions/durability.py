"""When a long-running process begins, warn of database settings with which a crash loses acknowledged
messages, and refuse tables that cannot keep a promise."""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import WeakSet

from sqlalchemy import Engine, StaticPool, Table

from inbox_outbox_base.databases.registry import taking
from inbox_outbox_base.errors.secrets import place, reason

from . import safety
from .connect import on_connection, root
from .session import BindArguments, bind_of

_log = logging.getLogger("inbox.durability")
_seen: WeakSet[Engine] = WeakSet()


def look(engine: Engine) -> None:
    """Ask the database, once for each engine, and name such settings in a WARNING. Never raises."""
    engine = root(engine)
    if engine in _seen or isinstance(engine.pool, StaticPool):  # its only connection may be in a transaction
        return
    # Before the question, so that a database that does not answer is not asked with every message.
    _seen.add(engine)
    try:
        risks = on_connection(engine, taking(engine.dialect.name).risks)
    except Exception as error:  # noqa: BLE001 - the work itself will raise it
        _log.debug("the settings could not be read: %s", reason(error))
        return
    if risks:
        where = place(engine.url)
        _log.warning("%s: a crash can lose messages that were acknowledged: %s", where, ", ".join(risks))


def looking_at(source: Any, table: Table, bind_arguments: BindArguments | None) -> Callable[[], None]:
    """The same for a handler's source, when the returned function is called. It also looks at the table.

    The function raises:
        UnsafeDatabase: the table cannot keep a promise.
    """
    return partial(_look_behind, source, table, bind_arguments)


def _look_behind(source: Any, table: Table, bind_arguments: BindArguments | None) -> None:
    try:
        engine = engine_behind(source, table, bind_arguments)
    except Exception as error:  # noqa: BLE001 - as above
        _log.debug("the engine could not be found: %s", reason(error))
        return
    if isinstance(engine, Engine):  # a function may not have one yet
        look(engine)
        safety.check_engine(engine, [table])


def engine_behind(source: Any, table: Table, bind_arguments: BindArguments | None) -> Any:
    """The engine itself, or the one by which sessions write to the table."""
    while callable(source):  # a function that returns a source, and makers of sessions
        source = getattr(source, "session_factory", source)()
    source = getattr(source, "sync_session", source)
    if hasattr(source, "get_bind"):
        source = bind_of(source, table, bind_arguments).engine
    return getattr(source, "sync_engine", source)
