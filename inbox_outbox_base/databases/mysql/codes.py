"""MySQL and MariaDB: error numbers, from their server and client error references."""

from typing import Any

from inbox_outbox_base.errors.codes import Code, Codes

_FULL = {1021, 1203, 1226}
"""Disk, memory or connections are exhausted, or the disk fails."""
_NOT_NOW = {1047, 1290, 1836, 3101, 3572}
"""The object is in use, the server has become a replica, or its cluster is changing."""


class MySQLCodes(Codes):
    """The driver's errors begin with the number."""

    # 0 is PyMySQL's error on a connection that it has closed itself.
    broken = frozenset({0, 1053, 1927, 2000, 2002, 2003, 2006, 2013, 2014, 2055, 4031})
    passing = broken | {1020, 1040, 1205, 1213}
    limits = frozenset({1317, 1969, 3024})
    lock_timeouts = frozenset({1205})
    transient = frozenset(_FULL | _NOT_NOW)
    read_only = frozenset({1290, 1836})
    denied = frozenset({1142, 1143})
    table_missing = frozenset({1146, 1049})
    refused = frozenset({1044, 1045, 1049, 1698})

    def code(self, cause: Any) -> Code | None:
        code = cause.args[0] if getattr(cause, "args", None) else None
        return code if isinstance(code, int) else None
