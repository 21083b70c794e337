"""PostgreSQL: its SQLSTATEs, types, driver and locks.

SQLSTATEs are from appendix A of its manual.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, ClassVar

from sqlalchemy import URL, Connection, Insert, Table, Text, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.types import TypeEngine

from inbox_outbox_base.dialect import Code, Codes, Connecting, Migrating, Storing

from . import login

_FULL = {"53000", "53100", "53200", "53400", "58030"}
"""Disk, memory, files or connections are exhausted, or the disk fails."""
_NOT_NOW = {"55006"}
"""The object is in use."""
_ABOUT_NO_ROW = {"08", "0A", "25", "26", "28", "3D", "3F", "40", "42", "53", "54", "55", "57", "58"}
"""Classes of errors about connections, rights, names, locks and the server, whose texts quote no values."""
_OF_ROWS = {"22", "23"}
"""Classes of errors of which PEP 249 makes DataError and IntegrityError."""
_OPERATIONAL = {"08", "25", "26", "28", "40", "53", "54", "55", "57", "58", "XX"}
"""Classes of errors of which it makes OperationalError and InternalError."""
_POOLED = {"26000", "42P05"}
"""A pooler that does not track prepared statements gave us another session."""
_THRESHOLD = "prepare_threshold"
_CACHED = "prepared_statement_cache_size"
_SAME = {"sslmode", "sslrootcert", "sslcert", "sslkey"}
"""Properties of the JDBC driver that have the same name in psycopg."""
_LOCK = 112_589_990_684  # an arbitrary number, the same in every migration


class PostgreSQLCodes(Codes):
    """All codes of class 08 are lost connections; 42704 (undefined object) comes for a row type, too."""

    drivers = frozenset({"psycopg", "psycopg2", "asyncpg", "sqlalchemy.dialects.postgresql.asyncpg"})
    # idle_in_transaction_session_timeout, transaction_timeout.
    overdue = frozenset({"25P03", "25P04"})
    # 57P01 to 57P05: the server shuts down, restarts, or has ended an idle session; 40003: it does not know
    # the outcome itself.
    broken = overdue | {"57P01", "57P02", "57P03", "57P05", "40003"}
    # 25006 read-only; 40001 serialization failure; 40P01 deadlock; 55P03 lock timeout; 53300 too many
    # connections.
    passing = (broken - overdue) | {"25006", "40001", "40P01", "55P03", "53300"}
    # A time limit and a cancellation have the same code.
    limits = frozenset({"57014"})
    lock_timeouts = frozenset({"55P03"})
    transient = frozenset(_FULL | _NOT_NOW | _POOLED)
    aborted = frozenset({"25P02"})
    read_only = frozenset({"25006"})
    denied = frozenset({"42501"})
    # Of a trigger; of a view; a value that is too long for an index.
    refuses_row = frozenset({"P0001", "44000", "54000"})
    # A table, a row type, a schema.
    table_missing = frozenset({"42P01", "42704", "3F000"})

    def code(self, cause: Any) -> Code | None:
        # PyMySQL's errors have an SQLSTATE, too, but they begin with a number.
        is_numbered = isinstance(next(iter(getattr(cause, "args", ())), None), int)
        code = getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)  # psycopg2's
        return code if isinstance(code, str) and not is_numbered else None

    def described(self, cause: Any) -> str:
        # asyncpg's error is the cause of SQLAlchemy's own, and has some other names.
        error = cause if hasattr(cause, "diag") else cause.__cause__ or cause
        diag, code = getattr(error, "diag", error), str(self.code(cause))

        def told(*names: str) -> str | None:
            return next((said for name in names if (said := getattr(diag, name, None))), None)

        names = {
            "constraint": told("constraint_name"),
            "type": told("datatype_name", "data_type_name"),
            "table": ".".join(each for each in (told("schema_name"), told("table_name")) if each),
            "column": told("column_name"),
        }
        parts = [f"{type(error).__name__} ({code})"]
        # With a context, the text may be from a function, such as a trigger's.
        if (
            code[:2] in _ABOUT_NO_ROW
            and (message := told("message_primary", "message"))
            and not told("context")
        ):
            parts.append(message)
        return ", ".join(parts + [f"{what} {name}" for what, name in names.items() if name])

    def breaks_connection(self, code: Code, *, invalidated: bool) -> bool:
        return super().breaks_connection(code, invalidated=invalidated) or str(code).startswith("08")

    def is_about_row(self, code: Code) -> bool:
        # asyncpg's errors are not told by their classes.
        return super().is_about_row(code) or str(code)[:2] in _OF_ROWS

    def is_operational(self, code: Code) -> bool:
        return str(code)[:2] in _OPERATIONAL

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


class PostgreSQLStoring(Storing):
    """The collation "C" compares byte for byte. The clock is not `now()`, which stands still during a
    transaction."""

    has_time_zones = True
    numbers_any_column = True

    def text(self, longest: int) -> TypeEngine[str]:
        return Text(collation="C")

    def from_now(self, seconds: str) -> str:
        return f"(clock_timestamp() + make_interval(secs => {seconds}))"

    def earlier(self, time: str, seconds: str) -> str:
        return f"({time} - make_interval(secs => {seconds}))"

    def upsert(self, table: Table, column: str) -> Insert:
        added = insert(table)
        return added.on_conflict_do_update(
            index_elements=table.primary_key.columns.values(), set_={column: added.excluded[column]}
        )

    def readable(self, time: str) -> str:
        # Times outside Python's first and last years, such as infinity, are moved to these.
        first, last = (f"TIMESTAMPTZ '{each} 00:00Z'" for each in ("0001-01-02", "9999-12-30"))
        return f"CASE WHEN {time} < {first} THEN {first} WHEN {time} > {last} THEN {last} ELSE {time} END"


class PostgreSQLConnecting(Connecting):
    """psycopg. It does not read all of its settings from a URL, so ``?prepare_threshold=none`` is read here:
    it turns prepared statements off, for poolers in transaction mode."""

    driver = "psycopg"
    others: ClassVar[Mapping[str, Mapping[str, str | None] | None]] = {
        "psycopg2": None,
        "asyncpg": {
            "ssl": "sslmode",
            "prepared_statement_cache_size": _CACHED,
            **{name: name for name in ("host", "port", "passfile", "target_session_attrs")},
        },
    }
    aliases = ("postgres",)
    extra = "binary"
    port = 5432
    idle_properties = frozenset(
        {
            "rewritebatchedinserts",
            "preparethreshold",
            "stringtype",
            "defaultrowfetchsize",
            "tcpkeepalive",
            "applicationname",
        }
    )

    def for_engine(self, url: URL) -> tuple[URL, dict[str, Any]]:
        value = url.query.get(_THRESHOLD)
        if value is None or not url.drivername.endswith(f"+{self.driver}"):
            return url, {}
        if value != "none" and not (isinstance(value, str) and value.isdecimal()):
            raise ValueError(f"{_THRESHOLD}: expected a whole number or none")
        threshold = None if value == "none" else int(value)
        return url.difference_update_query([_THRESHOLD]), {_THRESHOLD: threshold}

    def ours(self, url: URL) -> URL:
        found = super().ours(url)
        cached = found.query.get(_CACHED)
        found = found.difference_update_query([_CACHED])
        # Both turn prepared statements off, for poolers.
        return found.update_query_dict({_THRESHOLD: "none"}) if cached == "0" else found

    def place(self, url: URL, connection: Any) -> tuple[str | None, int | None, str | None]:
        # A URL may leave them to libpq's environment and service file, or name several hosts.
        if url.get_driver_name() not in (self.driver, "psycopg2"):
            return super().place(url, connection)
        return connection.info.host, connection.info.port, connection.info.dbname

    def with_property(self, url: URL, name: str, value: str) -> URL | None:
        if name in _SAME:
            return url.update_query_dict({name: value})
        if name == "preparethreshold" and value == "0":
            return url.update_query_dict({_THRESHOLD: "none"})  # psycopg's 0: on first use
        if name == "currentschema":
            return url.update_query_dict({"options": f"-csearch_path={value}"})
        return None


class PostgreSQLMigrating(Migrating):
    """An advisory lock of the transaction. A statement that waits for a table makes others queue behind it,
    so it gives up soon."""

    has_schemas = True
    has_partitions = True
    starts_over = True
    snapshots = frozenset({"REPEATABLE READ", "SERIALIZABLE"})

    def wait_for_turn(self, connection: Connection, seconds: int, table_seconds: int) -> bool:
        _limit(connection, seconds)
        connection.execute(select(func.pg_advisory_xact_lock(_LOCK)))
        _limit(connection, table_seconds)
        return True

    @contextmanager
    def locked(self, connection: Connection, tables: Sequence[Table]) -> Iterator[None]:
        names = ", ".join(map(connection.dialect.identifier_preparer.format_table, tables))
        connection.exec_driver_sql(f"LOCK TABLE {names} IN ACCESS EXCLUSIVE MODE")
        yield


def _limit(connection: Connection, seconds: int) -> None:
    connection.execute(select(func.set_config("lock_timeout", f"{seconds}s", True)))
