"""MySQL and MariaDB: error numbers, from their server and client error references."""

from typing import Any

from inbox_outbox_base.errors.codes import Code, Codes

_FULL = {1021, 1203, 1226}
"""Disk, memory or connections are exhausted, or the disk fails."""
_NOT_NOW = {1047, 1290, 1836, 3101, 3572}
"""The object is in use, the server has become a replica, or its cluster is changing."""


class MySQLCodes(Codes):
    """The driver's errors begin with the number."""

    # 0 is PyMySQL's error on a connection that it has closed itself; 1053 the server shuts down; 1927
    # (MariaDB) and 4031 (MySQL) it has ended the session; from 2000 on there is no connection any more.
    broken = frozenset({0, 1053, 1927, 2000, 2002, 2003, 2006, 2013, 2014, 2055, 4031})
    # 1020 the row has changed since it was read; 1040 too many connections; 1205 lock timeout; 1213 deadlock.
    passing = broken | {1020, 1040, 1205, 1213}
    # 1317 killed; 1969 (MariaDB) and 3024 (MySQL) the statement's time limit.
    limits = frozenset({1317, 1969, 3024})
    lock_timeouts = frozenset({1205})
    transient = frozenset(_FULL | _NOT_NOW)
    # 1290 an option such as --read-only forbids it; 1836 the server is in read-only mode.
    read_only = frozenset({1290, 1836})
    # Of a table, of a column.
    denied = frozenset({1142, 1143})
    # 1049 is the database, which is the schema here.
    table_missing = frozenset({1146, 1049})
    # 1044 no right to the database; 1045 wrong password; 1049 no such database; 1698 the account has no
    # password login.
    refused = frozenset({1044, 1045, 1049, 1698})

    def code(self, cause: Any) -> Code | None:
        code = cause.args[0] if getattr(cause, "args", None) else None
        return code if isinstance(code, int) else None
