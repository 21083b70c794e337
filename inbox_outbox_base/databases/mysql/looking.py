"""MySQL and MariaDB: sizes and row counts from the server's statistics, and old transactions."""

from collections.abc import Sequence
from datetime import timedelta

from sqlalchemy import Connection, Table, bindparam, text
from sqlalchemy.exc import DBAPIError

from inbox_outbox_base.checks.missing import schema_of
from inbox_outbox_base.databases.looking import Looking
from inbox_outbox_base.databases.taking_statements import clock
from inbox_outbox_base.errors.codes import code_of
from inbox_outbox_base.words.overviews import OldestSnapshot, TableOverview

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
        since = connection.execute(clock()).scalar_one() - timedelta(seconds=int(found.seconds))
        return OldestSnapshot(f"session {found.thread}{who}", since), None


def _limit(connection: Connection, seconds: float) -> tuple[str, float]:
    if getattr(connection.dialect, "is_mariadb", False):
        return "max_statement_time", seconds
    return "max_execution_time", round(seconds * 1_000)
