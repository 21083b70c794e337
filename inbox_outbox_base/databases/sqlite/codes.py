"""SQLite: result codes, which the driver has from Python 3.11 on."""

from collections.abc import Callable
from typing import Any

from inbox_outbox_base.errors.codes import Code, Codes

_BUSY, _LOCKED, _BUSY_SNAPSHOT = 5, 6, 517


class SQLiteCodes(Codes):
    """An extended code has its primary code in the last byte. There is no server to lose."""

    def code(self, cause: Any) -> Code | None:
        code: int | None = getattr(cause, "sqlite_errorcode", None)
        return code

    def breaks_connection(self, code: Code, *, invalidated: bool) -> bool:
        return False

    def is_passing(self, code: Code) -> bool:
        return _primary(code) in (_BUSY, _LOCKED)

    def ends_wait(self, code: Code) -> bool:
        # A snapshot that is too old stays so: no wait would have helped.
        return _primary(code) == _BUSY and code != _BUSY_SNAPSHOT

    def misses_table(self, code: Code, is_there: Callable[[], bool]) -> bool:
        return not self.is_passing(code) and not is_there()


def _primary(code: Code) -> int:
    return int(code) & 0xFF
