"""PostgreSQL through psycopg2."""

from collections.abc import Hashable
from datetime import UTC, datetime
from functools import cached_property, partial
from typing import Any

from sqlalchemy import Connection

from inbox_outbox_base.checks.samples import is_kept, name_of
from inbox_outbox_base.databases.taking import State, Taking

from .driver import CONNECT, DATES, ENCODINGS, END_WAIT, IDLE, REPORTED, LibpqState, PostgreSQLDriver

_TIME = datetime(2000, 1, 2, 3, 4, 5, 6, UTC)
_READ = {
    "text": (25, "a\u0142", "a\u0142"),
    "varchar": (1043, "a\u0142", "a\u0142"),
    "bytea": (17, "\\xff", b"\xff"),  # in a memoryview
    "timestamptz": (1184, "2000-01-02 03:04:05.000006+00", _TIME),
    "bool": (16, "t", True),
    "int2": (21, "1", 1),
    "int4": (23, "1", 1),
    "int8": (20, "1", 1),
    "float8": (701, "1.5", 1.5),
}
"""By type: its oid, what the server sends, and what the driver makes of it."""
_WRITTEN = {
    "a\u0142": b"'a\xc5\x82'",
    b"\xff": b"'\\xff'::bytea",
    True: b"true",
    2: b"2",
    1.5: b"1.5",
    _TIME: b"'2000-01-02T03:04:05.000006+00:00'::timestamptz",
}
"""By value, the literal that the driver writes."""


def _read(cast: Any, cursor: Any, sent: str) -> Any:
    value = cast(sent, cursor)
    return value.tobytes() if isinstance(value, memoryview) else value


class Psycopg2(PostgreSQLDriver):
    """Has libpq inside."""

    has_bytes = False

    def reported(self, name: str) -> str | None:
        value: str | None = self._driver.get_parameter_status(name)
        return value

    def place(self) -> Hashable:
        reported = self._driver.get_parameter_status
        return self._address, reported("search_path"), reported("session_authorization")

    @cached_property
    def _address(self) -> Hashable:
        info = self._driver.info
        return info.host, info.port, info.dbname

    def socket(self) -> int:
        return int(self._driver.fileno())

    def end_wait(self) -> None:
        import psycopg2

        driver = self._driver
        options = driver.get_dsn_parameters() | {"connect_timeout": CONNECT}
        if driver.info.password:
            options["password"] = driver.info.password
        connection = psycopg2.connect(**options)
        try:
            connection.autocommit = True
            connection.cursor().execute(END_WAIT.format("%s"), [driver.info.backend_pid])
        finally:
            connection.close()

    def unusable(self) -> str | None:
        from psycopg2.extensions import string_types
        from psycopg2.extras import DictCursorBase

        driver = self._driver
        if (refused := self.refused(ENCODINGS | DATES)) is not None:
            return refused
        factory = driver.cursor_factory
        if isinstance(factory, type) and issubclass(factory, DictCursorBase):
            return f"cursor_factory={name_of(factory)}: expected psycopg2.extensions.cursor"
        with driver.cursor() as cursor:
            casts = string_types | driver.string_types
            for kind, (oid, sent, expected) in _READ.items():
                cast = casts[oid]
                if not is_kept(partial(_read, cast, cursor), sent, expected):
                    return f"cast of {kind}={cast.name}: it must read {sent!r} as {expected!r}"
        for given, written in _WRITTEN.items():
            if not is_kept(self._written, given, written):
                return f"adapter of {type(given).__name__}: it must write {given!r} as {written!r}"
        return None

    def _written(self, value: Any) -> bytes:
        from psycopg2.extensions import adapt

        adapted = adapt(value)
        if hasattr(adapted, "prepare"):
            adapted.prepare(self._driver)
        written: bytes = adapted.getquoted()
        if self.reported("standard_conforming_strings") == "off":
            return written.removeprefix(b"E").replace(b"\\\\", b"\\")
        return written

    def is_ended(self) -> bool:
        return bool(self._driver.get_transaction_status() == IDLE)

    def state(self, database: Taking, connection: Connection) -> State:
        return self._state

    @cached_property
    def _state(self) -> State:
        return LibpqState(self._driver.get_transaction_status, partial(self.reported, REPORTED))
