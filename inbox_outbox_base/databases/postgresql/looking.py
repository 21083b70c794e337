"""PostgreSQL: sizes, dead rows, VACUUM, and what holds it back."""

from collections.abc import Sequence
from functools import cache
from typing import Any

from sqlalchemy import BigInteger, Connection, Select, Table, cast, func, literal, select, text, union_all

from inbox_outbox_base.databases.looking import Looking
from inbox_outbox_base.words.overviews import OldestSnapshot, TableOverview

from . import numbers

_MAY_LOOK = text("SELECT pg_has_role('pg_read_all_stats', 'USAGE')")
_BY_INDEX = text(
    "SELECT set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true), "
    "set_config('enable_sort', 'off', true), set_config('jit', 'off', true)"
)
_RESTRICT = text("SELECT set_config('statement_timeout', :milliseconds, true)")
_UNSEEN = "other sessions' snapshots: grant pg_read_all_stats to this role"
# VACUUM itself holds nothing back. Snapshots of other databases do not count, except for shared tables.
_OLDEST = text(
    """
    SELECT holder, since FROM (
        SELECT 'session ' || pid || ' ('
               || concat_ws(', ', nullif(application_name, ''), 'user ' || usename, state) || ')' AS holder,
               xact_start AS since, greatest(age(backend_xmin), age(backend_xid)) AS age
        FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type <> 'autovacuum worker'
        UNION ALL
        SELECT 'prepared transaction ' || gid || ' (user ' || owner || ')', prepared, age(transaction)
        FROM pg_prepared_xacts WHERE database = current_database()
        UNION ALL
        SELECT 'replication slot ' || slot_name || CASE WHEN active THEN '' ELSE ' (nobody reads it)' END,
               NULL, age(xmin)
        FROM pg_replication_slots
        UNION ALL
        SELECT 'standby ' || coalesce(nullif(application_name, ''), client_addr::text, '-'), NULL,
               age(backend_xmin)
        FROM pg_stat_replication
    ) AS held
    WHERE age IS NOT NULL ORDER BY age DESC, since LIMIT 1
    """
)


class PostgreSQLLooking(Looking):
    """The server's statistics."""

    def prepare(self, connection: Connection) -> None:
        # Without statistics of a new or restored table, it would sort all rows of each bucket. What is off is
        # counted as so costly that servers before 18 would compile the statement.
        connection.execute(_BY_INDEX)

    def restrict(self, connection: Connection, seconds: float) -> None:
        connection.exec_driver_sql("SET TRANSACTION READ ONLY")
        connection.execute(_RESTRICT, {"milliseconds": str(round(seconds * 1_000))})

    def sizes(self, connection: Connection, tables: Sequence[Table]) -> tuple[list[TableOverview], int]:
        found = [
            TableOverview(row.name, row.bytes, round(row.rows), row.dead, row.vacuumed_at)
            for row in connection.execute(_sizes(tuple(tables)))
        ]
        return found, sum(each.bytes or 0 for each in found)

    def oldest_snapshot(self, connection: Connection) -> tuple[OldestSnapshot | None, str | None]:
        found = connection.execute(_OLDEST).first()
        unseen = None if connection.execute(_MAY_LOOK).scalar_one() else _UNSEEN
        return None if found is None else OldestSnapshot(found.holder, found.since), unseen


@cache
def _sizes(tables: tuple[Table, ...]) -> Any:
    return union_all(*(_size(each) for each in tables))


def _size(of: Table) -> Select[Any]:
    part = numbers.parts(of)
    oid = part.c.relid
    vacuumed = func.greatest(
        func.pg_stat_get_last_vacuum_time(oid), func.pg_stat_get_last_autovacuum_time(oid)
    )
    dead = cast(func.sum(func.pg_stat_get_dead_tuples(oid)), BigInteger)
    return select(
        literal(of.name).label("name"),
        cast(func.sum(func.pg_total_relation_size(oid)), BigInteger).label("bytes"),
        numbers.density(of).scalar_subquery().label("rows"),
        dead.label("dead"),
        func.max(vacuumed).label("vacuumed_at"),
    ).select_from(part)
