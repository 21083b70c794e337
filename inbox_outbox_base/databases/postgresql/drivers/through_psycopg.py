"""PostgreSQL through psycopg (version 3), asynchronous or not."""

from collections.abc import Hashable
from datetime import UTC, datetime
from functools import cache, cached_property
from typing import Any

from sqlalchemy import Connection

from inbox_outbox_base.checks.samples import is_kept, name_of
from inbox_outbox_base.databases.taking import State, Taking

from .driver import CONNECT, DATES, ENCODINGS, END_WAIT, IDLE, REPORTED, LibpqState, PostgreSQLDriver

_READ = {
    "text": (25, b"a\xc5\x82", "a\u0142"),
    "varchar": (1043, b"a\xc5\x82", "a\u0142"),
    "bytea": (17, b"\\xff", b"\xff"),
    "timestamptz": (1184, b"2000-01-02 03:04:05.000006+00", datetime(2000, 1, 2, 3, 4, 5, 6, UTC)),
    "bool": (16, b"t", True),
    "int2": (21, b"1", 1),
    "int4": (23, b"1", 1),
    "int8": (20, b"1", 1),
    "float8": (701, b"1.5", 1.5),
}
"""By type: its oid, what the server sends, and what the driver makes of it."""
_WRITTEN = ("a\u0142", b"\xff", True, 1, 40_000, 2**40, 1.5, datetime(2000, 1, 2, 3, 4, 5, 6, UTC))
"""Values that the driver must write as psycopg does; integers of each size have a dumper of their own."""


class Psycopg(PostgreSQLDriver):
    """Shows libpq's own structure."""

    def reported(self, name: str) -> str | None:
        value: bytes | None = self._driver.pgconn.parameter_status(name.encode())
        return None if value is None else value.decode()

    def place(self) -> Hashable:
        reported = self._server.parameter_status
        return self._address, reported(b"search_path"), reported(b"session_authorization")

    @cached_property
    def _server(self) -> Any:
        return self._driver.pgconn

    @cached_property
    def _address(self) -> Hashable:
        return self._server.host, self._server.port, self._server.db

    def socket(self) -> int:
        return int(self._driver.pgconn.socket)

    def end_wait(self) -> None:
        import psycopg

        parameters, password = self._driver.info.get_parameters(), self._driver.info.password
        options = parameters | {"password": password or None, "connect_timeout": CONNECT}
        with psycopg.connect(**options, autocommit=True) as connection:
            connection.execute(END_WAIT.format("%s"), [self._driver.info.backend_pid])

    def unusable(self) -> str | None:
        from psycopg.adapt import PyFormat
        from psycopg.pq import Format
        from psycopg.rows import namedtuple_row, tuple_row

        driver = self._driver
        if (refused := self.refused(ENCODINGS | DATES)) is not None:
            return refused
        if driver.row_factory not in (tuple_row, namedtuple_row):
            return f"row_factory={name_of(driver.row_factory)}: expected tuple_row"
        for kind, (oid, sent, expected) in _READ.items():
            loader = driver.adapters.get_loader(oid, Format.TEXT)
            if not is_kept(loader(oid, driver).load, sent, expected):
                return f"loader of {kind}={name_of(loader)}: it must read {sent!r} as {expected!r}"
        for given, written in zip(_WRITTEN, _expected(), strict=True):
            if not is_kept(lambda each: _written(driver, each), given, written):
                of = type(given)
                dumper = driver.adapters.get_dumper(of, PyFormat.AUTO)
                return f"dumper of {of.__name__}={name_of(dumper)}: it must write {given!r} as psycopg does"
        return None

    def is_ended(self) -> bool:
        return bool(self._server.transaction_status == IDLE)

    def state(self, database: Taking, connection: Connection) -> State:
        return self._state

    @cached_property
    def _state(self) -> State:
        pgconn, name = self._server, REPORTED.encode()
        return LibpqState(lambda: pgconn.transaction_status, lambda: pgconn.parameter_status(name))


@cache
def _expected() -> list[bytes]:
    """By psycopg's own dumpers: an application may have replaced those of all connections."""
    from psycopg import postgres
    from psycopg.adapt import AdaptersMap

    own = AdaptersMap(types=postgres.types)
    postgres.register_default_adapters(own)
    return [_written(own, value) for value in _WRITTEN]


def _written(context: Any, value: Any) -> bytes:
    from psycopg.adapt import PyFormat, Transformer

    return bytes(Transformer(context).dump_sequence([value], [PyFormat.AUTO])[0] or b"")
