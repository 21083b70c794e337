"""Galera: several nodes take writes. A COMMIT is ordered among all of them before it is answered, but a node
applies those of the others a moment later."""

from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

_IS_ON = text("SHOW VARIABLES LIKE 'wsrep_on'")  # servers without Galera may not have it
_CATCH_UP = text("SET STATEMENT wsrep_sync_wait = 1 FOR SELECT 1")
_KNOWN = "_inbox_galera"


def is_node(connection: Connection) -> bool:
    """Whether the server is a node of a cluster; a connection asks once."""
    if _KNOWN not in connection.info:
        connection.info[_KNOWN] = ("wsrep_on", "ON") in {tuple(row) for row in connection.execute(_IS_ON)}
    return bool(connection.info[_KNOWN])


def catch_up(connection: Connection) -> None:
    """See `Taking.catch_up`. The node waits until it has applied what was ordered before, at most as long as
    its `repl.causal_read_timeout` says (30 s); inside a transaction that has read, it does not wait."""
    if not (getattr(connection.dialect, "is_mariadb", False) and is_node(connection)):
        return
    try:
        connection.execute(_CATCH_UP)
    except DBAPIError as error:
        # It has left the cluster, or is far behind: another connection may lead to a better one.
        connection.invalidate(error)
        raise
