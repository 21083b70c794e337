"""PostgreSQL: what pg_catalog says about our tables. Rows that another server, a rule, a trigger or Citus
keeps, changes or drops are not where the answer to a statement says that they are."""

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from sqlalchemy import (
    Connection,
    Dialect,
    Row,
    Select,
    Table,
    Text,
    bindparam,
    cast,
    column,
    literal_column,
    select,
    text,
)
from sqlalchemy.dialects.postgresql import OID
from sqlalchemy.sql.elements import ColumnElement

from inbox_outbox_base.checks.catalogue import (
    ADDED_BY_RELAYS,
    Checking,
    bytewise,
    changing_triggers,
    incomplete,
    references,
    referred_to,
    refused,
    unfilled,
    wrong_keys,
    wrong_types,
)
from inbox_outbox_base.checks.indexes import FoundIndex, reflected
from inbox_outbox_base.words.findings import Finding

from .relations import relation

_KINDS = {"v": "a view", "m": "a materialized view", "f": "a foreign table"}
_WHOLE = ("smallint", "integer", "bigint")
"""The types of whole numbers, the smallest first."""
_RANGE = re.compile(r"FOR VALUES FROM \((?:MINVALUE.*|(.*))\) TO \((?:MAXVALUE.*|(.*))\)")
"""The bounds of a partition; the ends of all values are None."""
_OWN_TABLE = "create the table itself here with `inbox-outbox migrate`"

_FOUND = text("""
    pg_class c CROSS JOIN (
        SELECT chr(34) || chr(39) || chr(92) AS quotes,
               CASE current_setting('session_replication_role')
               WHEN 'replica' THEN 'R' ELSE 'O' END AS enabled
    ) AS this CROSS JOIN LATERAL (
        SELECT array_agg(p.oid) AS parts,
               array_agg(p.oid::regclass::text) FILTER (WHERE p.relkind = 'f') AS far_parts,
               array_agg(p.oid::regclass::text) FILTER (WHERE p.relpersistence <> 'p') AS lost_parts
        FROM pg_class p WHERE p.oid = c.oid OR p.oid IN (SELECT relid FROM pg_partition_tree(c.oid))
    ) AS tree CROSS JOIN LATERAL (
        -- The sequences that the numbered column owns; whether its default draws from them, and nothing else.
        SELECT array_agg(q.seqrelid::regclass::text ORDER BY q.seqrelid) AS sequences,
               -- Without quotes and backslashes, which depend on settings.
               bool_and(CASE a.attidentity WHEN ''
                   THEN translate(pg_get_expr(d.adbin, d.adrelid), this.quotes, '')
                   = translate(concat('nextval(', q.seqrelid::regclass, '::regclass)'), this.quotes, '')
                   ELSE o.deptype = 'i' END) AS draws,
               bool_and(q.seqincrement > 0 AND NOT q.seqcycle) AS counts_up
        FROM pg_attribute a
        JOIN pg_depend o ON o.classid = 'pg_class'::regclass AND o.refclassid = 'pg_class'::regclass
            AND o.refobjid = a.attrelid AND o.refobjsubid = a.attnum AND o.deptype IN ('a', 'i')
        JOIN pg_sequence q ON q.seqrelid = o.objid
        LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
        WHERE a.attrelid = c.oid
        AND (c.relname::text, a.attname::text) IN (('outbox_message', 'sequence'),
            ('outbox_delayed', 'sequence'), ('inbox_ledger', 'id'))
    ) AS drawn CROSS JOIN LATERAL (
        SELECT c.oid::bigint AS number, c.relname::text AS name, c.relkind::text AS kind,
               tree.far_parts AS elsewhere, tree.lost_parts AS forgetful,
               c.relkind = 'r' AND EXISTS (SELECT FROM pg_inherits i WHERE i.inhparent = c.oid) AS has_heirs,
               -- For each row (1), and before (2) or instead of (64) it, and not only on replicas.
               ARRAY(SELECT DISTINCT t.tgname::text FROM pg_trigger t
                     WHERE t.tgrelid = ANY(tree.parts) AND t.tgenabled IN ('A', this.enabled)
                     AND t.tgtype & 1 = 1 AND t.tgtype & 66 <> 0) AS triggers,
               ARRAY(SELECT DISTINCT r.rulename::text FROM pg_rewrite r
                     WHERE r.ev_class = ANY(tree.parts) AND r.ev_enabled IN ('A', this.enabled)) AS rules,
               ARRAY(SELECT DISTINCT concat(f.conrelid::regclass, '.', f.conname) FROM pg_constraint f
                     WHERE f.contype = 'f' AND f.confrelid = ANY(tree.parts) AND f.conparentid = 0
                     AND f.confdeltype <> 'c') AS refer,
               -- An index of a partitioned table is one of each partition. An expression has no column.
               (SELECT jsonb_agg(jsonb_build_array(
                    x.relname, i.indrelid = c.oid AND i.indisunique AND i.indisvalid AND i.indimmediate
                               AND i.indpred IS NULL, (
                    SELECT jsonb_agg(a.attname)
                    FROM unnest(i.indkey::int2[]) WITH ORDINALITY AS k (number, place)
                    LEFT JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = nullif(k.number, 0)
                    AND i.indisunique AND i.indcollation[k.place - 1] = a.attcollation
                    WHERE k.place <= i.indnkeyatts)))
                FROM pg_index i JOIN pg_class x ON x.oid = i.indexrelid
                WHERE i.indrelid = ANY(tree.parts) AND (i.indisunique OR i.indisexclusion)) AS unique_keys,
               ARRAY(SELECT o.conname::text FROM pg_constraint o
                     WHERE o.conrelid = c.oid AND o.contype = 'f') AS references_others,
               -- 100 is the database's own collation, whose provider PostgreSQL 14 does not name. Those that
               -- the server itself provides (b) compare bytes.
               (SELECT jsonb_agg(jsonb_build_array(
                    a.attname, replace(format_type(coalesce(nullif(y.typbasetype, 0), y.oid),
                        CASE WHEN y.typbasetype = 0 THEN a.atttypmod ELSE y.typtypmod END), '"', ''),
                    l.collname IN ('C', 'POSIX', 'ucs_basic') OR l.collprovider = 'b'
                    OR l.oid = 100 AND EXISTS (
                        SELECT FROM pg_database d,
                        LATERAL coalesce(to_jsonb(d) ->> 'datlocprovider', 'c') AS its (provider)
                        WHERE d.datname = current_database() AND (its.provider = 'b'
                        OR its.provider = 'c' AND d.datcollate IN ('C', 'POSIX'))),
                    CASE WHEN a.attnotnull OR y.typnotnull
                         THEN a.atthasdef OR a.attidentity <> '' OR y.typdefault IS NOT NULL END))
                FROM pg_attribute a JOIN pg_type y ON y.oid = a.atttypid
                LEFT JOIN pg_collation l ON l.oid = a.attcollation
                WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped) AS columns,
               -- The bounds of tables divided by ranges or lists, without a partition for all other values.
               (SELECT jsonb_object_agg(d.partrelid::regclass::text, ARRAY(
                    SELECT pg_get_expr(p.relpartbound, p.oid)
                    FROM pg_inherits i JOIN pg_class p ON p.oid = i.inhrelid WHERE i.inhparent = d.partrelid))
                FROM pg_partitioned_table d
                WHERE d.partrelid = ANY(tree.parts) AND d.partstrat IN ('l', 'r') AND d.partdefid = 0
               ) AS bounds,
               -- Others of this name, in the path or in the schema of a role that this session may become.
               current_setting('search_path') LIKE '%$user%' AND EXISTS (
                   SELECT FROM pg_class o JOIN pg_namespace n ON n.oid = o.relnamespace
                   WHERE o.relname = c.relname AND o.oid <> c.oid AND (
                       n.nspname = ANY(current_schemas(false)) OR EXISTS (
                           SELECT FROM pg_roles r WHERE r.rolname = n.nspname
                           AND pg_has_role(session_user, r.oid, 'MEMBER')))) AS by_role,
               CASE WHEN to_regclass('pg_dist_partition') IS NOT NULL
                    THEN has_table_privilege(to_regclass('pg_dist_partition'), 'SELECT') END AS citus
    ) AS found
""")
_NAMES = (
    "number",
    "name",
    "kind",
    "elsewhere",
    "forgetful",
    "has_heirs",
    "triggers",
    "rules",
    "references_others",
    "refer",
    "sequences",
    "draws",
    "counts_up",
    "by_role",
    "citus",
)
# Citus' catalogue is in pg_catalog, which is always on the search path.
_DISTRIBUTED = text("""
    SELECT logicalrelid::regclass::oid::bigint FROM pg_dist_partition
    WHERE logicalrelid::regclass::oid::bigint IN :tables
""").bindparams(bindparam("tables", expanding=True))
_AT_ONCE = text("SET CONSTRAINTS ALL IMMEDIATE")
_IS_READ_ONLY = text("SELECT pg_is_in_recovery() OR current_setting('transaction_read_only')::boolean")
# A policy that lets every row through, for this role and every command, hides none.
_HIDES = """
    row_security_active(c.oid) AND NOT (
        EXISTS (SELECT FROM pg_policy o WHERE o.polrelid = c.oid AND o.polpermissive AND o.polcmd = '*'
                AND pg_get_expr(o.polqual, o.polrelid) = 'true'
                AND EXISTS (SELECT FROM unnest(o.polroles) AS role (oid)
                            WHERE role.oid = 0 OR pg_has_role(role.oid, 'USAGE')))
        AND NOT EXISTS (SELECT FROM pg_policy o WHERE o.polrelid = c.oid AND NOT o.polpermissive)
    )
"""


@cache
def _catalogue(tables: tuple[Table, ...]) -> Select[Any]:
    found: list[ColumnElement[Any]] = [column(name) for name in _NAMES]
    # As text: the application may have its own function for JSON.
    as_text = [cast(column(name), Text).label(name) for name in ("unique_keys", "columns", "bounds")]
    return select(*found, *as_text).select_from(_FOUND).where(_are(tables))


@cache
def _hiding(tables: tuple[Table, ...]) -> Select[Any]:
    name: ColumnElement[str] = literal_column("c.relname::text")
    names = select(name).select_from(text("pg_class c"))
    return names.where(_are(tables), literal_column(_HIDES))


@cache
def _invalid(table: Table) -> Select[Any]:
    """Indexes that CREATE INDEX CONCURRENTLY has begun and not ended, or that lack those of partitions."""
    columns: list[ColumnElement[Any]] = [
        literal_column("i.relname::text").label("name"),
        literal_column("i.oid::regclass::text").label("place"),
        literal_column("i.relkind = 'I'").label("has_parts"),
    ]
    invalid = select(*columns).select_from(
        text("pg_index x JOIN pg_class i ON i.oid = x.indexrelid JOIN pg_class c ON c.oid = x.indrelid")
    )
    return invalid.where(_are([table]), literal_column("NOT x.indisvalid"))


def _are(tables: Sequence[Table]) -> ColumnElement[bool]:
    return literal_column("c.oid", OID).in_([relation(each) for each in tables])


class PostgreSQLChecking(Checking):
    """One statement; a second one where Citus is installed."""

    def look(self, connection: Connection, tables: Sequence[Table]) -> list[Finding]:
        rows = connection.execute(_catalogue(tuple(tables))).all()
        by_name = {each.name: each for each in tables}
        distributed = self._distributed(connection, rows)
        return [
            found
            for row in rows
            for found in _problems(
                row, by_name[row.name], connection.dialect, is_distributed=row.number in distributed
            )
        ]

    def _distributed(self, connection: Connection, rows: Sequence[Row[Any]]) -> set[int]:
        if not rows or rows[0].citus is None:
            return set()
        numbers = [row.number for row in rows]
        if not rows[0].citus:  # nobody can tell
            return set(numbers)
        return set(connection.execute(_DISTRIBUTED, {"tables": numbers}).scalars())

    def run_at_once(self, connection: Connection) -> object:
        return connection.execute(_AT_ONCE)

    def is_read_only(self, connection: Connection) -> bool:
        return bool(connection.execute(_IS_READ_ONLY).scalar_one())

    def hides_rows(self, connection: Connection, tables: Sequence[Table]) -> list[str]:
        return list(connection.execute(_hiding(tuple(tables))).scalars())

    def _indexes(self, connection: Connection, table: Table) -> Iterator[FoundIndex]:
        invalid = {row.name: row for row in connection.execute(_invalid(table))}
        for each in reflected(connection, table):
            if (row := invalid.get(each.name)) is None:
                yield each
            else:
                mending = None if row.has_parts else f"REINDEX INDEX CONCURRENTLY {row.place}"
                yield replace(each, unused="invalid, unless it is being built", mending=mending)


def _problems(row: Row[Any], table: Table, dialect: Dialect, *, is_distributed: bool) -> Iterator[Finding]:
    if row.kind not in ("r", "p"):
        yield refused(row.name, f"it is {_KINDS.get(row.kind, 'no table')}", _OWN_TABLE)
        return
    if is_distributed:
        why = "Citus manages it (pg_dist_partition), and reports rows as inserted that it did not insert"
        yield refused(row.name, why, "undistribute it, so that it is a local table of the coordinator")
    if row.elsewhere:
        why = f"partition {', '.join(row.elsewhere)} is a foreign table, which commits by itself"
        yield refused(row.name, why, "keep all partitions in this database")
    if row.forgetful:
        why = f"{', '.join(row.forgetful)} is unlogged or temporary: a crash or a disconnect empties it"
        yield refused(row.name, why, "run ALTER TABLE ... SET LOGGED, or create a permanent table")
    if row.has_heirs:
        why = "other tables inherit from it, and a key is unique in each of them alone"
        yield refused(row.name, why, "run ALTER TABLE ... NO INHERIT, or use declarative partitions")
    yield from _interference(row)
    yield from references(row.name, row.references_others)
    # Text that does not compare byte for byte is no type of ours.
    compared = bytewise(table)
    columns = json.loads(row.columns)
    types = {
        name: kind if is_bytewise or name not in compared else "" for name, kind, is_bytewise, _ in columns
    }
    yield from wrong_types(table, dialect, types, _holds)
    yield from unfilled(table, {name: filled for name, _, _, filled in columns if filled is not None})
    if row.name in ADDED_BY_RELAYS:
        bounds = json.loads(row.bounds or "{}")
        yield from incomplete(row.name, [name for name, each in bounds.items() if not _is_complete(each)])
    yield from _numbering(row)
    if row.by_role:
        why = "the role decides which of several tables it is (search_path has $user), and each message asks"
        yield Finding(f"table {row.name}", "said", f"{why} for the role; name it with schema=")
    keys: tuple[dict[str, frozenset[str | None]], ...] = {}, {}
    for name, is_valid, names in json.loads(row.unique_keys or "[]"):
        keys[not is_valid][name] = frozenset(names)
    yield from wrong_keys(table, *keys)


def _interference(row: Row[Any]) -> Iterator[Finding]:
    """What changes or drops rows that our statements write."""
    if row.triggers:
        yield changing_triggers(row.name, row.triggers)
    if row.rules:
        yield refused(row.name, f"rule {', '.join(row.rules)} changes what statements do", "drop the rule")
    if row.refer:
        yield referred_to(row.name, row.refer)


def _holds(declared: str, there: str) -> bool:
    """Too long text is an error, but spaces are padded, fractions of seconds rounded, and times without a
    time zone depend on the session's."""
    if declared.lower() in _WHOLE:
        return there in _WHOLE[_WHOLE.index(declared.lower()) :]
    if declared.startswith(("TEXT", "VARCHAR")):
        return there == "text" or there.startswith("character varying")
    return there.replace("timestamp(6)", "timestamp") == declared.lower()  # six digits are all that there are


def _is_complete(bounds: list[str]) -> bool:
    """Whether these ranges, which never overlap, leave no gap: each end is another's beginning."""
    ranges = [found.groups() for each in bounds if (found := _RANGE.fullmatch(each))]
    begins, ends = Counter(begin for begin, _ in ranges), Counter(end for _, end in ranges)
    return len(ranges) == len(bounds) > 0 and begins == ends


def _numbering(row: Row[Any]) -> Iterator[Finding]:
    """What keeps the numbers from being those of the sequence that is asked, in their order."""
    if row.sequences is None:
        if row.name == "outbox_message":
            why = "its column sequence owns no sequence, so relays cannot know which numbers were drawn"
            yield refused(row.name, why, "run ALTER SEQUENCE ... OWNED BY outbox_message.sequence")
        return
    names = ", ".join(row.sequences)
    if len(row.sequences) > 1:
        why = f"several sequences belong to its numbers ({names}), and only one of them draws"
        yield refused(row.name, why, "run ALTER SEQUENCE ... OWNED BY NONE for the others")
    elif not row.draws:
        why = f"its numbers are not drawn from the sequence {names} that belongs to them"
        yield refused(
            row.name, why, "let the column draw from it by its default, or give it the one that draws"
        )
    elif not row.counts_up:
        why = f"the sequence {names} counts down, or begins again at its end"
        yield refused(row.name, why, "run ALTER SEQUENCE ... INCREMENT BY 1 NO CYCLE")
