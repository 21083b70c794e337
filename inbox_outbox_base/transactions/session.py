"""Finds the connection of a Session for our rows, and makes sure that all of the Session commits together.

A Session with several binds has a transaction in each, and commits one after the other: if a COMMIT fails,
earlier ones stay. So a Session with a row of ours can write only to that row's database, or must commit in
two phases.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any
from weakref import ref

from sqlalchemy import Connection, Engine, Table, Update, event, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, SessionTransaction

from inbox_outbox_base.databases.registry import taking
from inbox_outbox_base.errors import codes
from inbox_outbox_base.errors.inbox import InvalidOption, UnsupportedDatabase, UnusableConnection

from . import failed_commit

BindArguments = Mapping[str, Any]
"""The arguments for `get_bind` of a Session with several binds, as for `Session.execute`."""


@dataclass(slots=True)
class _Kept:
    """One transaction of a Session in which rows of ours were written."""

    error: type[UnusableConnection]
    ours: set[Connection]
    """The connections on which they were written."""
    checked: set[Connection]
    """The connections that call our check before they commit."""


_KEPT = "_inbox_kept"
"""The attribute that holds it: cheaper for each message than a WeakKeyDictionary."""
_listening: list[bool] = []
"""Not empty once listeners for all sessions' connections are set up."""


def bind_of(
    session: Session,
    table: Table,
    bind_arguments: BindArguments | None = None,
    error: type[InvalidOption] = InvalidOption,
) -> Engine | Connection:
    """The bind by which the session writes to this table; ask only once, because it may be chosen at random.

    Raises:
        InvalidOption: `bind_arguments` is not a mapping, or its bind is not a bind.
    """
    if bind_arguments is None:
        return session.get_bind(clause=_written(table))
    if not isinstance(bind_arguments, Mapping):
        raise error(f"bind_arguments={bind_arguments!r:.80}: expected a mapping")
    arguments = {"clause": _written(table), **bind_arguments}
    given = arguments.pop("bind", None)
    if given is None:
        return session.get_bind(**arguments)
    for behind in ("sync_engine", "sync_connection"):  # if the bind is an AsyncSession's
        given = getattr(given, behind, given)
    if not isinstance(given, Engine | Connection):
        raise error(f"bind_arguments={{'bind': {type(given).__name__}}}: expected an Engine or a Connection")
    return given


@cache
def _written(table: Table) -> Update:
    """An UPDATE, because SQLAlchemy's recipe for sessions that read from a replica looks for UPDATE and
    DELETE, and would take an INSERT for a read."""
    return update(table)


def connection_of(
    session: Session,
    bind: Engine | Connection,
    error: type[UnusableConnection] = UnusableConnection,
    *,
    is_ours: bool = False,
) -> Connection:
    """The session's connection to this bind, for a row of ours. From now on, if the session has also written
    to another database, its COMMIT raises the error before anything is committed.

    `is_ours`: the session is ours, too, and we roll it back if its COMMIT fails.
    """
    connection = session.connection(bind_arguments={"bind": bind})
    if not is_ours:
        failed_commit.watch(connection)
    if not session.twophase:
        _keep(session, connection, error)
    return connection


def check_no_session(
    bind_arguments: BindArguments | None, error: type[InvalidOption] = InvalidOption
) -> None:
    """Refuse bind arguments for a Connection, which is bound already.

    Raises:
        InvalidOption: `bind_arguments` were given.
    """
    if bind_arguments is not None:
        raise error(f"bind_arguments={bind_arguments!r:.80}: expected None, because this is not a Session")


def is_aborted(transaction: SessionTransaction, besides: Connection | None = None) -> bool:
    """Whether COMMIT, or PREPARE, would silently keep nothing on one of the session's connections. The caller
    checks `besides` itself."""
    if besides is not None and not _has_several(transaction):
        return False
    return any(map(_is_aborted, connections_of(transaction) - {besides}))


def _is_aborted(connection: Connection) -> bool:
    try:
        return taking(connection.dialect.name).is_aborted(connection)
    except UnsupportedDatabase:
        return False


def _keep(session: Session, connection: Connection, error: type[UnusableConnection]) -> None:
    if not _listening:
        event.listen(Session, "after_begin", _begun)
        _listening.append(True)
    if (transaction := session.get_transaction()) is None:
        return  # never: the session has a connection
    kept: _Kept | None = getattr(transaction, _KEPT, None)
    if kept is None:
        kept = _Kept(error, {connection}, set())
        setattr(transaction, _KEPT, kept)
    elif issubclass(error, kept.error):
        kept.error = error
    kept.ours.add(connection)
    _check_all(transaction, kept)


def _begun(session: Session, _: SessionTransaction, __: Connection) -> None:
    """A session uses a connection for the first time in its transaction."""
    transaction = session.get_transaction()
    if transaction is not None and (kept := getattr(transaction, _KEPT, None)) is not None:
        _check_all(transaction, kept)


def _check_all(transaction: SessionTransaction, kept: _Kept) -> None:
    """Check on every connection before its COMMIT: whichever is first, nothing has been committed before."""
    if not _has_several(transaction):
        return
    connections = connections_of(transaction)
    for connection in connections - kept.checked:
        # A weak reference: a caller's connection keeps its listeners after the session has ended.
        event.listen(connection, "commit", partial(_check, kept, ref(transaction)))
        failed_commit.watch(connection)
    kept.checked |= connections


def _has_several(transaction: SessionTransaction) -> bool:
    # Each connection has two entries: under itself and under its engine.
    return len(transaction._connections) > 2  # noqa: SLF001 - public since SQLAlchemy 2.1.7


def connections_of(transaction: SessionTransaction) -> set[Connection]:
    return {entry[0] for entry in transaction._connections.values()}  # noqa: SLF001 - public since SQLAlchemy 2.1.7


def _check(kept: _Kept, begun: ref[SessionTransaction], _: Connection) -> None:
    transaction = begun()
    if transaction is None or transaction.session.get_transaction() is not transaction:
        return  # the connection is the caller's own, and the session has ended before it
    others = connections_of(transaction) - kept.ours
    writing = [*kept.ours, *filter(_may_have_written, others)]
    if len(writing) > 1:
        raise kept.error(
            f"the session writes to {_names(writing)}, which commit one after the other: use one database, "
            "or twophase=True; nothing was committed"
        )


def _may_have_written(connection: Connection) -> bool:
    try:
        return taking(connection.dialect.name).may_have_written(connection)
    except UnsupportedDatabase:
        return True
    except DBAPIError as error:
        if codes.breaks_connection(error):
            raise
        return True


def _names(connections: list[Connection]) -> str:
    urls = (connection.engine.url for connection in connections)
    return " and ".join(sorted(f"{url.get_backend_name()} database {url.database!r}" for url in urls))
