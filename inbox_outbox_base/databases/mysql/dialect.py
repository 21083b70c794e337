"""MySQL and MariaDB: their error numbers, types, driver and locks.

Error numbers are from their server and client error references.
"""

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

from sqlalchemy import (
    BINARY,
    URL,
    ColumnElement,
    Connection,
    Dialect,
    Insert,
    String,
    Table,
    cast,
    func,
    select,
    text,
    type_coerce,
)
from sqlalchemy.dialects.mysql import DATETIME, LONGBLOB, MEDIUMTEXT, VARBINARY, VARCHAR, insert
from sqlalchemy.exc import DBAPIError
from sqlalchemy.types import TypeEngine

from inbox_outbox_base.dialect import Code, Codes, Connecting, Migrating, Storing

from . import cluster
from .turn import Turn

_FULL = {1021, 1114, 1203, 1226}
"""Disk, a table's file, memory or connections are exhausted, or the disk fails."""
_NOT_NOW = {3572}
"""The object is in use."""
TAKEN = frozenset({1062, 1586})
"""A unique key has the value; 1586 is the same error with the key's name."""
_NAMES = re.compile(r" for ((?:key '[^']*')|(?:column [^ ]+(?: at row \d+|\.)))$")
"""At the end of a text, where no value can be."""
_LOCK = "inbox_outbox_version"  # the same in every migration
_PAUSE = 0.5
"""Seconds between two tries to have the turn among the nodes of a cluster."""


class MySQLCodes(Codes):
    """The driver's errors begin with the number."""

    drivers = frozenset({"pymysql", "asyncmy", "MySQLdb"})
    # 0: PyMySQL has closed the connection itself; 1053: the server shuts down; 1927 (MariaDB) and 4031
    # (MySQL): the server has ended the session; from 2000 on: there is no connection any more. On Galera, a
    # node that has left the cluster answers 1047 to all that it is sent, and 1180 to a COMMIT that the other
    # nodes may have applied.
    broken = frozenset({0, 1047, 1053, 1180, 1927, 2000, 2002, 2003, 2006, 2013, 2014, 2055, 4031})
    # 1290: an option such as --read-only forbids the write; 1792: the session, which has it from the server,
    # begins READ ONLY transactions; 1836: the server is in read-only mode.
    read_only = frozenset({1047, 1290, 1792, 1836})
    # 1020 the row has changed since it was read; 1040 too many connections; 1205 lock timeout; 1213 deadlock,
    # or another node's transaction was first; 3101 the same on Group Replication.
    passing = broken | read_only | {1020, 1040, 1205, 1213, 3101}
    # By default a lock timeout undoes only its statement. 1206: too many locks.
    undoing = frozenset({1020, 1206, 1213})
    # 1317 killed; 1969 (MariaDB) and 3024 (MySQL) the statement's time limit.
    limits = frozenset({1317, 1969, 3024})
    lock_timeouts = frozenset({1205})
    transient = frozenset(_FULL | _NOT_NOW)
    # Of a table, of a column.
    denied = frozenset({1142, 1143})
    # 1118 a row that is too long; 1292, 1416 and 1690 a value; 1364 no value; 1369 a view; 1526 no partition;
    # 1644 a trigger's SIGNAL; 3140 invalid JSON; 3819 and 4025 (MariaDB) a CHECK.
    refuses_row = frozenset({1118, 1292, 1364, 1369, 1416, 1526, 1644, 1690, 3140, 3819, 4025})
    # 1049 is the database, which is the schema here.
    table_missing = frozenset({1146, 1049})
    # 1044 no right to the database; 1045 wrong password; 1049 no such database; 1698 the account has no
    # password login.
    refused = frozenset({1044, 1045, 1049, 1698})

    def described(self, cause: Any) -> str:
        code, text = (*cause.args, "")[:2]
        return told(type(cause).__name__, code, str(text))

    def code(self, cause: Any) -> Code | None:
        code = cause.args[0] if getattr(cause, "args", None) else None
        return code if isinstance(code, int) else None


class _Unconverted(TypeEngine[str]):
    """Text that is sent and read as bytes of UTF-8. The server would convert it from and to the connection's
    character set, which may be smaller, and some of it would be lost, with or without an error."""

    def bind_processor(self, dialect: Dialect) -> Callable[[str | None], Any]:
        return lambda value: None if value is None else value.encode(errors="surrogateescape")

    def column_expression(self, colexpr: ColumnElement[Any]) -> ColumnElement[Any]:
        return type_coerce(cast(colexpr, BINARY), self)

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], str | None]:
        return lambda value: value.decode() if isinstance(value, bytes) else value


class _UnconvertedText(_Unconverted, MEDIUMTEXT):
    __visit_name__ = "MEDIUMTEXT"


class _UnconvertedString(_Unconverted, VARCHAR):
    __visit_name__ = "VARCHAR"


# 1048 and 1364 NOT NULL, 1054 no such column; 1451 and 1452 foreign keys; 3819 and 4025 CHECK.
_ABOUT_NO_ROW = (
    MySQLCodes.passing
    | MySQLCodes.limits
    | MySQLCodes.transient
    | MySQLCodes.read_only
    | MySQLCodes.denied
    | MySQLCodes.table_missing
    | MySQLCodes.refused
) | {1048, 1054, 1364, 1451, 1452, 3819, 4025}
"""Errors about connections, rights, names, locks and the server, whose texts quote no values."""


def told(kind: str, code: int, text: str) -> str:
    """An error or a warning without the values of rows, which the server's texts quote."""
    if code in _ABOUT_NO_ROW or 2000 <= code < 3000:  # the client's own
        return f"{kind} ({code}): {text}"
    found = _NAMES.search(text)
    return f"{kind} ({code})" + (f", {found[1]}" if found else "")


class MySQLStoring(Storing):
    """InnoDB. Text that compares byte for byte is stored as bytes, and times without a time zone."""

    # Not now(), which depends on the session's time zone.
    now = "(utc_timestamp(6))"
    has_binary_text = True
    options = {"engine": "InnoDB", "charset": "utf8mb4"}  # noqa: RUF012 - nobody changes it

    def text(self, longest: int) -> TypeEngine[bytes]:
        return VARBINARY(longest)

    def time(self) -> DATETIME:
        return DATETIME(fsp=6)

    def binary(self, longest: int) -> TypeEngine[bytes]:
        return VARBINARY(longest)

    def long_text(self) -> MEDIUMTEXT:
        return MEDIUMTEXT()

    def unconverted(self, kind: TypeEngine[str]) -> TypeEngine[str]:
        return (
            _UnconvertedString(kind.length)
            if isinstance(kind, String) and kind.length
            else _UnconvertedText()
        )

    def long_binary(self) -> LONGBLOB:
        return LONGBLOB()

    def from_now(self, seconds: str) -> str:
        return f"(utc_timestamp(6) + INTERVAL {seconds} SECOND)"

    def earlier(self, time: str, seconds: str) -> str:
        return f"({time} - INTERVAL {seconds} SECOND)"

    def upsert(self, table: Table, column: str) -> Insert:
        added = insert(table)
        return added.on_duplicate_key_update({column: added.inserted[column]})

    def movable(self, time: str) -> str:
        # A table may hold a zero date that the server would not accept again.
        return f"GREATEST({time}, TIMESTAMP '1000-01-01 00:00:00')"


_SAME: dict[str, str | None] = {"charset": "charset", "unix_socket": "unix_socket"}
"""Options in URLs that all drivers have."""


class MySQLConnecting(Connecting):
    """PyMySQL, whose settings can all be in the URL. Applications may use asyncmy or mysqlclient."""

    driver = "pymysql"
    others: ClassVar[Mapping[str, Mapping[str, str | None] | None]] = {
        "asyncmy": _SAME,
        "mysqldb": _SAME | {"binary_prefix": None},
    }
    extra = "mysql"
    port = 3306
    idle_properties = frozenset(
        {"rewritebatchedstatements", "useunicode", "characterencoding", "tcpkeepalive"}
    )

    def place(self, url: URL, connection: Any) -> tuple[str | None, int | None, str | None]:
        # A URL may leave host and port to an option file, or name a socket.
        if not url.drivername.endswith(f"+{self.driver}"):
            return super().place(url, connection)
        if connection.unix_socket:
            return connection.unix_socket, None, url.database
        return connection.host, connection.port, url.database


class MySQLMigrating(Migrating):
    """A named lock of the session, and on Galera a row, too: DDL commits, so a lock of the transaction would
    not last."""

    commits_ddl = True

    def __init__(self) -> None:
        self._turn: Turn | None = None

    def wait_for_turn(self, connection: Connection, seconds: int, table_seconds: int) -> bool:
        connection.detach()  # the session holds the lock, so it must not return to the pool
        # By default DDL waits for a table for a day (MariaDB) or a year (MySQL).
        connection.execute(text("SET SESSION lock_wait_timeout = :wait"), {"wait": seconds})
        until = time.monotonic() + seconds
        if connection.execute(select(func.get_lock(_LOCK, seconds))).scalar_one() != 1:
            return False
        return not cluster.is_node(connection) or self._is_first(connection, until)

    def _is_first(self, connection: Connection, until: float) -> bool:
        """Whether the turn among all nodes of a cluster is ours, at the latest at this time."""
        turn = Turn(connection.engine)
        while True:
            try:
                if turn.take(connection):
                    self._turn = turn
                    return True
            except DBAPIError as error:
                connection.rollback()
                code = MySQLCodes().code(error.orig)
                if code in MySQLCodes.table_missing:
                    turn.make(connection)
                    continue
                if code not in MySQLCodes.passing - MySQLCodes.broken:  # another node was first
                    raise
            if time.monotonic() > until:
                return False
            time.sleep(_PAUSE)

    def end_turn(self, connection: Connection) -> None:
        if self._turn is not None:
            self._turn.end(connection)

    @contextmanager
    def locked(self, connection: Connection, tables: Sequence[Table]) -> Iterator[None]:
        names = map(connection.dialect.identifier_preparer.format_table, tables)
        connection.exec_driver_sql(f"LOCK TABLES {', '.join(f'{name} WRITE' for name in names)}")
        try:
            yield
        finally:
            connection.exec_driver_sql("UNLOCK TABLES")
