"""PostgreSQL: sizes, dead rows, VACUUM, and what holds it back."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from sqlalchemy import (
    BigInteger,
    Connection,
    Select,
    Table,
    Text,
    bindparam,
    cast,
    func,
    literal,
    literal_column,
    select,
    text,
    union_all,
)

from inbox_outbox_base.databases.looking import Looking
from inbox_outbox_base.words.overviews import LockHolder, OldestSnapshot, TableOverview

from . import numbers

_MAY_LOOK = text("SELECT pg_has_role('pg_read_all_stats', 'USAGE')")
_BY_INDEX = text(
    "SELECT set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true), "
    "set_config('enable_sort', 'off', true), set_config('jit', 'off', true), "
    "set_config('plan_cache_mode', 'force_custom_plan', true)"
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

# Every transaction holds a lock on itself until it ends. Some locks of a table, such as that of CREATE INDEX,
# let nobody change a row.
_LOCKS = text(
    """
    SELECT coalesce(
               'session ' || lock.pid || ' ('
               || concat_ws(', ', nullif(application_name, ''), 'user ' || usename, state) || ')',
               'prepared transaction ' || prepared.gid || ' (user ' || prepared.owner || ')',
               'a prepared transaction'
           ) AS holder, coalesce(prepared.prepared, session.xact_start) AS since, lock.pid AS pid
    FROM pg_locks AS lock
    LEFT JOIN pg_stat_activity AS session ON session.pid = lock.pid
    LEFT JOIN pg_prepared_xacts AS prepared ON lock.pid IS NULL AND prepared.transaction = lock.transactionid
    WHERE lock.granted AND lock.pid IS DISTINCT FROM pg_backend_pid() AND (
        lock.locktype = 'transactionid' AND lock.transactionid = CAST(CAST(:xid AS text) AS xid)
        OR lock.locktype = 'relation' AND lock.relation = CAST(CAST(:of AS text) AS oid)
           AND lock.database = (SELECT oid FROM pg_database WHERE datname = current_database())
           AND lock.mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
    )
    ORDER BY since LIMIT 1
    """
)
# Who has the row may itself wait, and then ending it would help nobody.
_BLOCKER = text(
    """
    SELECT session.pid AS pid, 'session ' || session.pid || ' ('
           || concat_ws(', ', nullif(application_name, ''), 'user ' || usename, state) || ')' AS holder
    FROM unnest(pg_blocking_pids(:pid)) AS blocking(pid)
    JOIN pg_stat_activity AS session ON session.pid = blocking.pid
    ORDER BY session.xact_start LIMIT 1
    """
)
_LONGEST_CHAIN = 5
"""Sessions that wait for each other."""


class PostgreSQLLooking(Looking):
    """The server's statistics."""

    def prepare(self, connection: Connection) -> None:
        # Without statistics of a new or restored table, it would sort all rows of each bucket. What is off is
        # counted as so costly that servers before 18 would compile the statement. A plan for any consumer
        # would have the partitions of all.
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

    def lock_holder(
        self, connection: Connection, table: Table, key: Mapping[str, Any]
    ) -> tuple[LockHolder | None, str | None]:
        given = {f"{name}_": value for name, value in key.items()}
        row = connection.execute(_row(table, tuple(key)), given).first()
        if row is None:
            return None, None
        found = connection.execute(_LOCKS, {"xid": row.xid, "of": row.of}).first()
        if found is None:
            return None, None
        holder, blocked = found.holder, found.pid
        for _ in range(_LONGEST_CHAIN):
            blocker = None if blocked is None else connection.execute(_BLOCKER, {"pid": blocked}).first()
            if blocker is None:
                break
            holder, blocked = f"{holder}, which itself waits for {blocker.holder},", blocker.pid
        return LockHolder(holder, found.since), None


@cache
def _row(of: Table, names: tuple[str, ...]) -> Select[Any, Any]:
    """A row's table, and the transaction that has locked it last; several that have done so FOR SHARE have a
    number that is no transaction's."""
    xid, its_table = (cast(literal_column(name), Text) for name in ("xmax", "tableoid"))
    where = (of.c[name] == bindparam(f"{name}_", type_=of.c[name].type) for name in names)
    return select(xid.label("xid"), its_table.label("of")).select_from(of).where(*where)


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
