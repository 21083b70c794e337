"""PostgreSQL through asyncpg, whose types are binary: they depend on no setting but the encoding."""

import asyncio
from collections.abc import Hashable

from sqlalchemy import Connection
from sqlalchemy.exc import OperationalError
from sqlalchemy.util import await_only
from sqlalchemy.util.concurrency import in_greenlet

from inbox_outbox_base.databases.taking import State, Taking

from .driver import CONNECT, ENCODINGS, END_WAIT, REPORTED, PostgreSQLDriver

_OWN = {
    "bool": 16,
    "bytea": 17,
    "int8": 20,
    "int2": 21,
    "int4": 23,
    "text": 25,
    "float8": 701,
    "varchar": 1043,
    "timestamptz": 1184,
}
"""The oids of types that must have asyncpg's own codec."""


class Asyncpg(PostgreSQLDriver):
    """Keeps what the server has reported last, but does not tell an aborted transaction from another one."""

    def reported(self, name: str) -> str | None:
        return getattr(self._driver.get_settings(), name, None)

    def place(self) -> Hashable:
        driver = self._driver
        path, login = map(self.reported, ("search_path", "session_authorization"))
        return driver._addr, driver._params.database, path, login  # noqa: SLF001 - nothing public says

    def socket(self) -> int:
        transport = self._driver._transport  # noqa: SLF001 - nothing public has it
        return int(transport.get_extra_info("socket").fileno())

    def end_wait(self) -> None:
        asyncio.run(self._end_wait())  # this thread has no loop of its own

    async def _end_wait(self) -> None:
        import asyncpg

        address, its = self._driver._addr, self._driver._params  # noqa: SLF001 - as above
        host, port = address if isinstance(address, tuple) else (address, None)
        is_optional = its.sslmode.name in ("allow", "prefer")  # a context alone would require encryption
        connection = await asyncpg.connect(
            host=host,
            port=port,
            database=its.database,
            user=its.user,
            password=its.password,
            ssl=its.sslmode if is_optional else its.ssl,
            timeout=CONNECT,
        )
        try:
            await connection.execute(END_WAIT.format("$1"), self._driver.get_server_pid())
        finally:
            await connection.close(timeout=CONNECT)

    def unusable(self) -> str | None:
        if (refused := self.refused(ENCODINGS)) is not None:
            return refused
        codecs = self._driver._protocol.get_settings()  # noqa: SLF001 - nothing public has them
        for name, oid in _OWN.items():
            if codecs.get_data_codec(oid) is not codecs.get_data_codec(oid, ignore_custom_codec=True):
                return f"codec of {name}: expected asyncpg's own"
        return None

    def is_ended(self) -> bool:
        # Nothing can commit on one that is closed, as the next statement or the COMMIT will find.
        return not (self.is_closed() or self.is_in_transaction())

    def state(self, database: Taking, connection: Connection) -> State:
        return AsyncpgState(self, database, connection)

    def is_closed(self) -> bool:
        """Also once a call was interrupted: asyncpg ends the connection then."""
        return bool(self._driver.is_closed())

    def is_in_transaction(self) -> bool:
        """Also in an aborted one."""
        return bool(self._driver.is_in_transaction())

    def errors(self) -> tuple[type[Exception], ...]:
        """The classes of its errors."""
        from asyncpg import InterfaceError, InternalClientError, PostgresError

        return PostgresError, InterfaceError, InternalClientError

    async def refuses_statements(self) -> bool:
        """Whether an error has aborted the transaction. Asks the server."""
        from asyncpg.exceptions import InFailedSQLTransactionError

        try:
            await self._driver.execute("SELECT")
        except InFailedSQLTransactionError:
            return True
        return False


class AsyncpgState(State):
    """The driver knows whether a transaction is open. Whether an error has aborted it, the server is asked: a
    COMMIT would raise nothing."""

    tells_undone = True

    def __init__(self, driver: Asyncpg, database: Taking, connection: Connection) -> None:
        super().__init__(database, connection)
        self._driver = driver

    def reported(self) -> object:
        return self._driver.reported(REPORTED)

    def is_ended(self, mark: object = None) -> bool:
        if self._driver.is_ended():
            return True
        # An error that aborts the transaction ends its settings, but not the transaction.
        return (
            mark is not None
            and not self._driver.is_closed()
            and self.reported() != mark
            and not self.is_aborted()
        )

    def is_aborted(self) -> bool:
        # The mark does not tell: it outlives an error inside a savepoint.
        if not (self._driver.is_in_transaction() and in_greenlet()):
            return False
        try:
            return await_only(self._driver.refuses_statements())
        except self._driver.errors():
            return False  # the connection is lost, as the COMMIT will find
        except OSError as error:  # above all, the TimeoutError of command_timeout
            self._connection.invalidate(error)
            raise OperationalError(None, None, ConnectionError(type(error).__name__)) from error
        except BaseException as error:
            self._connection.invalidate(error)  # interrupted: the answer is still to come
            raise
