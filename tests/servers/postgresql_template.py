"""The database that tests on PostgreSQL copy.

Creating, using and dropping a new copy takes the server ten times as long as emptying an old one: it copies
the catalog, the first session reads all of it, and a checkpoint comes before the drop.
"""

import time
from collections.abc import Callable
from typing import Any

import psycopg
from sqlalchemy import URL

LEAVING = 0.5
"""How many seconds a session may take to end after its client has gone."""

OTHERS = """
SELECT (SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid())
     + (SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database())
"""
FIRST = 16_384
"""Objects from this number on are not the server's own."""

OURS = {
    "pg_class": "oid",
    "pg_attribute": "attrelid",
    "pg_index": "indrelid",
    "pg_statistic": "starelid",
    "pg_constraint": "oid",
    "pg_proc": "oid",
    "pg_rewrite": "oid",
    "pg_trigger": "oid",
    "pg_type": "oid",
}
"""Large catalogs, and the column that says whose object it is."""

WHOLE = (
    "pg_default_acl",
    "pg_event_trigger",
    "pg_extension",
    "pg_namespace",
    "pg_policy",
    "pg_publication",
    "pg_statistic_ext",
)
HERE = "datname = current_database()"
VERSIONS = "SELECT '{0}', count(*), max(t.xmin::text::bigint) FROM {0} AS t"
STATE = " UNION ALL ".join(
    [
        *(f"{VERSIONS.format(catalog)} WHERE {number} >= {FIRST}" for catalog, number in OURS.items()),
        *(VERSIONS.format(catalog) for catalog in WHOLE),
        f"{VERSIONS.format('pg_database')} WHERE {HERE}",
        f"{VERSIONS.format('pg_db_role_setting')} JOIN pg_database d ON d.oid = setdatabase WHERE {HERE}",
    ]
)
"""The objects of a database: how many, and the newest version. Whatever changes one writes a new version."""

TABLES = "SELECT oid, oid::regclass::text AS name, pg_relation_size(oid) > 0 OR reltuples >= 0 FROM pg_class"
TABLES += f" WHERE oid >= {FIRST} AND relkind IN ('r', 'p') ORDER BY pg_class.oid"

RESTART = """
SELECT setval(seqrelid::regclass, seqstart, false) FROM pg_sequence
WHERE pg_sequence_last_value(seqrelid) IS NOT NULL
"""
"""A sequence may have been used although its table is empty."""

Connection = psycopg.Connection[Any]
State = list[tuple[Any, ...]]


class PostgreSQLTemplate:
    """The server copies it. A copy is emptied if its test changed only rows, and tables of the test's own."""

    def __init__(self, new: Callable[[], URL]) -> None:
        self._new = new
        self._states: dict[str, State] = {}
        self._rows: dict[str, bytes] | None = None
        self._tables: set[int] = set()

    def copy(self) -> URL:
        """Create a copy, and record what it looks like."""
        url = self._new()
        with _connect(url) as connection:
            tables = connection.execute(TABLES).fetchall()
            if self._rows is None:
                self._tables = {number for number, *_ in tables}
                self._rows = {name: _rows(connection, name) for _, name, is_filled in tables if is_filled}
            self._states[str(url.database)] = _state(connection)
        return url

    def restore(self, copy: URL) -> bool:
        """Empty a copy; return False if more than its rows has changed."""
        name = str(copy.database)
        state = self._states.pop(name)
        try:
            with _connect(copy) as connection:
                if not _is_alone(connection) or not self._empty(connection, state):
                    return False
                self._states[name] = _state(connection)
                return True
        except psycopg.Error:  # a lock, a foreign key: it is dropped, which says more if that fails, too
            return False

    def _empty(self, connection: Connection, state: State) -> bool:
        connection.execute("SET lock_timeout = '2s'")
        tables = connection.execute(TABLES).fetchall()
        if foreign := [name for number, name, _ in tables if number not in self._tables]:
            connection.execute(f"DROP TABLE {', '.join(foreign)} CASCADE")
        if _state(connection) != state:
            return False
        kept = self._rows or {}
        changed = [name for name, rows in kept.items() if _rows(connection, name) != rows]
        used = [name for number, name, is_used in tables if is_used and number in self._tables]
        if emptied := changed + [name for name in used if name not in kept]:
            connection.execute(f"TRUNCATE {', '.join(emptied)}")
        connection.execute(RESTART)
        for table in changed:
            with connection.cursor().copy(f"COPY {table} FROM STDIN") as into:
                into.write(kept[table])
        # What this session has not reported yet, such as the scans that build the indexes of an emptied
        # table, would be added afterwards.
        connection.execute("SELECT pg_stat_force_next_flush()")
        connection.execute("SELECT pg_stat_reset()")
        return True


def _connect(url: URL) -> Connection:
    address = url.set(drivername="postgresql").render_as_string(hide_password=False)
    return psycopg.connect(address, autocommit=True)


def _is_alone(connection: Connection) -> bool:
    """Whether nobody else is connected, after waiting for sessions that are just ending."""
    deadline = time.monotonic() + LEAVING
    while connection.execute(OTHERS).fetchone() != (0,):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def _state(connection: Connection) -> State:
    return connection.execute(STATE).fetchall()


def _rows(connection: Connection, table: str) -> bytes:
    with connection.cursor().copy(f"COPY {table} TO STDOUT") as out:
        return b"".join(bytes(each) for each in out)
