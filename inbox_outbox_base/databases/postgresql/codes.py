"""PostgreSQL: SQLSTATEs, from appendix A of its manual."""

from contextlib import suppress
from typing import Any

from inbox_outbox_base.errors.codes import Code, Codes

from . import login

_FULL = {"53000", "53100", "53200", "53400", "58030"}
"""Disk, memory, files or connections are exhausted, or the disk fails."""
_NOT_NOW = {"55006"}
"""The object is in use."""
_POOLED = {"26000", "42P05"}
"""A pooler that does not track prepared statements gave us another session."""


class PostgreSQLCodes(Codes):
    """All of class 08 are lost connections; 42704 (undefined object) comes for a table's row type, too."""

    # 57P01 to 57P05 the server shuts down, restarts, or has ended an idle session; 25P03 and 25P04 it has
    # ended a transaction that took too long; 40003 it does not know the outcome itself.
    broken = frozenset({"57P01", "57P02", "57P03", "57P05", "25P03", "25P04", "40003"})
    # 25006 read-only; 40001 serialization failure; 40P01 deadlock; 55P03 lock timeout; 53300 too many
    # connections.
    passing = broken | {"25006", "40001", "40P01", "55P03", "53300"}
    # A time limit, or somebody who cancels: both have the same code.
    limits = frozenset({"57014"})
    lock_timeouts = frozenset({"55P03"})
    transient = frozenset(_FULL | _NOT_NOW | _POOLED)
    aborted = frozenset({"25P02"})
    read_only = frozenset({"25006"})
    denied = frozenset({"42501"})
    # A table, a row type, a schema.
    table_missing = frozenset({"42P01", "42704", "3F000"})

    def code(self, cause: Any) -> Code | None:
        # PyMySQL's errors have an SQLSTATE, too, but they begin with a number.
        is_numbered = isinstance(next(iter(getattr(cause, "args", ())), None), int)
        code = getattr(cause, "sqlstate", None)
        return code if isinstance(code, str) and not is_numbered else None

    def breaks_connection(self, code: Code, *, invalidated: bool) -> bool:
        return super().breaks_connection(code, invalidated=invalidated) or str(code).startswith("08")

    def is_refusal(self, code: Code) -> bool:
        # 3D000: no such database; class 28: no such role, or a wrong password.
        return code == "3D000" or str(code).startswith("28")

    def refusal(self, cause: Any) -> Code | None:
        code, pgconn = self.code(cause), getattr(cause, "pgconn", None)
        if code is None and pgconn is not None:
            # libpq does not expose the SQLSTATE of a refused connection, and its text is translated.
            with suppress(Exception):
                code = login.code_of_refusal(pgconn)
        return code if code is not None and self.is_refusal(code) else None
