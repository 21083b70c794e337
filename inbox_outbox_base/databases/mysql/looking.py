"""MySQL and MariaDB: sizes and row counts from the server's statistics, and old transactions."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Row, Table, TextClause, bindparam, text
from sqlalchemy.exc import DBAPIError

from inbox_outbox_base.checks.missing import schema_of
from inbox_outbox_base.databases.looking import Looking
from inbox_outbox_base.databases.taking_statements import clock
from inbox_outbox_base.errors.codes import code_of, is_denied, is_limited
from inbox_outbox_base.words.overviews import LockHolder, OldestSnapshot, TableOverview

_NO_PROCESS = 1227
_UNSEEN = "other sessions' transactions: grant PROCESS to this role"
_SIZES = text(
    "SELECT table_name AS name, coalesce(data_length, 0) + coalesce(index_length, 0) AS bytes, "
    "coalesce(table_rows, 0) AS table_rows FROM information_schema.tables "
    "WHERE table_schema = coalesce(:schema, database()) AND table_name IN :names ORDER BY table_name"
).bindparams(bindparam("names", expanding=True))
_OLDEST = text(
    "SELECT trx.trx_mysql_thread_id AS thread, list.user AS name, list.host AS host, "
    "greatest(timestampdiff(SECOND, trx.trx_started, now()), 0) AS seconds "
    "FROM information_schema.innodb_trx AS trx "
    "LEFT JOIN information_schema.processlist AS list ON list.id = trx.trx_mysql_thread_id "
    "WHERE trx.trx_mysql_thread_id <> connection_id() ORDER BY trx.trx_started LIMIT 1"
)
_UNSEEN_LOCKS = {
    False: "other sessions' locks: grant PROCESS, and SELECT on performance_schema.data_locks, to this role",
    True: "other sessions' locks: grant PROCESS to this role",
}
"""What a role cannot see; by whether it is MariaDB."""
_HOLDER = (
    "SELECT trx.trx_mysql_thread_id AS thread, list.user AS name, list.host AS host, "
    "list.command AS command, trx.trx_state AS state, "
    "greatest(timestampdiff(SECOND, trx.trx_started, now()), 0) AS seconds "
)
# A lock of an entry of another index names that entry's columns, and then those of the primary key. Locks of
# the gap before an entry do not keep anybody from changing it.
_MYSQL_LOCKS = text(
    _HOLDER + "FROM performance_schema.data_locks AS held "
    "JOIN information_schema.innodb_trx AS trx ON trx.trx_id = held.engine_transaction_id "
    "LEFT JOIN information_schema.processlist AS list ON list.id = trx.trx_mysql_thread_id "
    "WHERE held.object_schema = coalesce(:schema, database()) AND held.object_name = :name "
    "AND held.lock_type = 'RECORD' AND held.lock_status = 'GRANTED' AND held.lock_mode NOT LIKE '%,GAP%' "
    "AND (held.lock_data = :place OR held.index_name <> 'PRIMARY' AND held.lock_data LIKE :ending) "
    "AND trx.trx_mysql_thread_id <> connection_id() ORDER BY trx.trx_started LIMIT 1"
)
# MariaDB knows only the locks that somebody waits for.
_MARIADB_LOCKS = text(
    _HOLDER + "FROM information_schema.innodb_lock_waits AS waits "
    "JOIN information_schema.innodb_locks AS held ON held.lock_id = waits.blocking_lock_id "
    "JOIN information_schema.innodb_trx AS trx ON trx.trx_id = waits.blocking_trx_id "
    "LEFT JOIN information_schema.processlist AS list ON list.id = trx.trx_mysql_thread_id "
    "WHERE held.lock_table = concat('`', coalesce(:schema, database()), '`.`', :name, '`') "
    "AND (held.lock_data = :place OR held.lock_index <> 'PRIMARY' AND held.lock_data LIKE :ending) "
    "AND trx.trx_mysql_thread_id <> connection_id() "
    "ORDER BY trx.trx_state = 'LOCK WAIT', trx.trx_started LIMIT 1"
)


class MySQLLooking(Looking):
    """The server's statistics; MySQL renews a table's only once a day or after ANALYZE TABLE."""

    def restrict(self, connection: Connection, seconds: float) -> None:
        # Both servers have a limit of their own, for the session only.
        limit, most = _limit(connection, seconds)
        connection.exec_driver_sql(f"SET @inbox_before = @@{limit}, SESSION {limit} = {most}")
        connection.exec_driver_sql("SET TRANSACTION READ ONLY")

    def unrestrict(self, connection: Connection) -> None:
        limit, _ = _limit(connection, 0)
        connection.exec_driver_sql(f"SET SESSION {limit} = @inbox_before")

    def sizes(self, connection: Connection, tables: Sequence[Table]) -> tuple[list[TableOverview], int]:
        given = {"schema": schema_of(connection, tables[0]), "names": [each.name for each in tables]}
        found = [
            TableOverview(row.name, int(row.bytes), int(row.table_rows))
            for row in connection.execute(_SIZES, given)
        ]
        return found, sum(each.bytes or 0 for each in found)

    def oldest_snapshot(self, connection: Connection) -> tuple[OldestSnapshot | None, str | None]:
        try:
            found = connection.execute(_OLDEST).first()
        except DBAPIError as error:
            if code_of(error) != _NO_PROCESS:
                raise
            return None, _UNSEEN
        if found is None:
            return None, None
        who = "" if found.name is None else f" (user {found.name} from {found.host})"
        return OldestSnapshot(f"session {found.thread}{who}", _since(connection, found)), None

    def lock_holder(
        self, connection: Connection, table: Table, key: Mapping[str, Any]
    ) -> tuple[LockHolder | None, str | None]:
        is_mariadb = bool(getattr(connection.dialect, "is_mariadb", False))
        place = ", ".join(_shown(key[column.name]) for column in table.primary_key)
        given = {"schema": schema_of(connection, table), "name": table.name, "place": place}
        statement: TextClause = _MARIADB_LOCKS if is_mariadb else _MYSQL_LOCKS
        try:
            found = connection.execute(statement, given | {"ending": f"%, {place}"}).first()
        except DBAPIError as error:
            if is_limited(error):
                return None, "other sessions' locks: there are very many"
            if code_of(error) != _NO_PROCESS and not is_denied(error):
                raise
            return None, _UNSEEN_LOCKS[is_mariadb]
        if found is None:
            return None, None
        who = "" if found.name is None else f" (user {found.name} from {found.host}, {found.command})"
        waits = ", which itself waits for a lock," if found.state == "LOCK WAIT" else ""
        return LockHolder(f"session {found.thread}{who}{waits}", _since(connection, found)), None


def _since(connection: Connection, found: Row[Any]) -> datetime:
    now: datetime = connection.execute(clock()).scalar_one()
    return now - timedelta(seconds=int(found.seconds))


def _shown(value: int | str) -> str:
    """The value of a column, as these servers show that of a lock."""
    if isinstance(value, int):
        return str(value)
    return f"0x{value.encode(errors='surrogateescape').hex().upper()}"


def _limit(connection: Connection, seconds: float) -> tuple[str, float]:
    if getattr(connection.dialect, "is_mariadb", False):
        return "max_statement_time", seconds
    return "max_execution_time", round(seconds * 1_000)
