"""PostgreSQL: what the catalogue says about partitions and about what belongs to a table."""

from functools import cache
from typing import Any

from sqlalchemy import Select, Table, Text, bindparam, literal_column, select, text
from sqlalchemy.dialects.postgresql import ARRAY, OID

from .relations import relation

SIGN = "inbox-outbox: "
"""Begins the comments on our partitions; the rest is JSON."""
_COMMENTED = text(
    """
    pg_class root JOIN pg_class c ON c.relnamespace = root.relnamespace AND c.relkind IN ('r', 'p')
         -- By the index on names: the next character after _ is a backquote.
         AND c.relname >= 'inbox_message_' AND c.relname < 'inbox_message`'
    JOIN pg_description d ON d.objoid = c.oid AND d.classoid = 'pg_class'::regclass AND d.objsubid = 0
         AND starts_with(d.description, 'inbox-outbox: ')
    LEFT JOIN pg_inherits i ON i.inhrelid = c.oid
    """
)
_ANNOUNCED = text(
    """
    pg_inherits i JOIN pg_constraint c ON c.conrelid = i.inhrelid AND c.contype = 'c'
    JOIN pg_description d ON d.objoid = c.oid AND d.classoid = 'pg_constraint'::regclass
         AND starts_with(d.description, 'inbox-outbox: ')
    """
)
_ROOT = text(
    """
    pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    LEFT JOIN pg_partitioned_table p ON p.partrelid = c.oid
    """
)
LEFT_BEHIND = text(
    """
    SELECT 'row-level security' FROM pg_class WHERE oid = :oid AND relrowsecurity
    UNION ALL SELECT 'policy ' || polname FROM pg_policy WHERE polrelid = :oid
    UNION ALL SELECT 'trigger ' || tgname FROM pg_trigger WHERE tgrelid = :oid AND NOT tgisinternal
    UNION ALL SELECT 'rule ' || rulename FROM pg_rewrite WHERE ev_class = :oid
    UNION ALL SELECT 'foreign key ' || conname FROM pg_constraint
              WHERE contype = 'f' AND :oid IN (conrelid, confrelid)
    UNION ALL SELECT 'table ' || inhrelid::regclass FROM pg_inherits WHERE inhparent = :oid
    UNION ALL SELECT DISTINCT 'view ' || r.ev_class::regclass
              FROM pg_depend d JOIN pg_rewrite r ON r.oid = d.objid
              WHERE d.refclassid = 'pg_class'::regclass AND d.classid = 'pg_rewrite'::regclass
              AND d.refobjid = :oid AND r.ev_class <> :oid
    """
)
"""What belongs to a table and would keep to it under its new name."""
PUBLICATIONS = text(
    """
    SELECT DISTINCT pubname::text FROM pg_publication_tables
    WHERE schemaname = :schema AND tablename = ANY (:names) ORDER BY 1
    """
).bindparams(bindparam("names", type_=ARRAY(Text)))
"""Those of these tables, also FOR ALL TABLES."""
NO_LIMITS = text(
    """
    SELECT set_config(name, '0', true) FROM pg_settings
    WHERE name IN ('idle_in_transaction_session_timeout', 'transaction_timeout')
    """
)
"""The second one is of PostgreSQL 17."""
NUMBER = text(
    """
    SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = :schema AND c.relname = :name
    """
)
INDEXES = text(
    """
    SELECT i.relname AS name, x.indisunique || split_part(pg_get_indexdef(i.oid), ' USING ', 2) AS definition
    FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid WHERE x.indrelid = :oid ORDER BY i.oid
    """
)
RIGHTS = text(
    """
    SELECT a.privilege_type || acl.of AS name, a.is_grantable,
           CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END AS role
    FROM (
        SELECT relacl AS granted, '' AS of FROM pg_class WHERE oid = :oid
        UNION ALL SELECT attacl, format(' (%I)', attname) FROM pg_attribute WHERE attrelid = :oid
    ) AS acl CROSS JOIN LATERAL aclexplode(acl.granted) AS a
    """
)
"""Each privilege, on a table and on its columns."""


@cache
def commented(table: Table) -> Select[Any]:
    """The tables that have our comment, in the schema of this table."""
    columns = {
        "name": "c.relname::text",
        "comment": f"substr(d.description, {len(SIGN) + 1})",
        "parent": "i.inhparent",
        "is_pending": "i.inhdetachpending",
        "rows": "c.reltuples",
    }
    return _of(columns).select_from(_COMMENTED).where(literal_column("root.oid", OID) == relation(table))


@cache
def announcements(table: Table) -> Select[Any]:
    """The comments on constraints that say from which key on a consumer will have partitions."""
    columns = {"comment": f"substr(d.description, {len(SIGN) + 1})"}
    return _of(columns).select_from(_ANNOUNCED).where(literal_column("i.inhparent", OID) == relation(table))


@cache
def find_root(table: Table) -> Select[Any]:
    """The table itself, and who may change it."""
    columns = {
        "oid": "c.oid",
        "schema": "n.nspname::text",
        "name": "c.relname::text",
        "has_partitions": "c.relkind = 'p'",
        "is_ours": "p.partstrat = 'r' AND p.partattrs::text = (SELECT string_agg(attnum::text, ' ' ORDER BY "
        "attname) FROM pg_attribute WHERE attrelid = c.oid AND attname IN ('consumer', 'key')) "
        "AND (SELECT relname FROM pg_class WHERE oid = p.partdefid) = c.relname || '_default'",
        "owner": "pg_get_userbyid(c.relowner)::text",
        "is_owned": "pg_has_role(c.relowner, 'USAGE')",
        "role": "current_user::text",
    }
    return _of(columns).select_from(_ROOT).where(literal_column("c.oid", OID) == relation(table))


def _of(columns: dict[str, str]) -> Select[Any]:
    named: list[Any] = [literal_column(sql).label(name) for name, sql in columns.items()]
    return select(*named)
