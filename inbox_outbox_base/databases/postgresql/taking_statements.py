"""PostgreSQL: the statements that take messages; `taking` says why they take locks."""

from functools import cache
from typing import Any, Literal

from sqlalchemy import (
    BigInteger,
    BindParameter,
    Boolean,
    Executable,
    Integer,
    LargeBinary,
    Select,
    Subquery,
    Table,
    Text,
    any_,
    bindparam,
    case,
    cast,
    column,
    delete,
    exists,
    false,
    func,
    literal,
    literal_column,
    select,
)
from sqlalchemy import table as table_named
from sqlalchemy.dialects.postgresql import ARRAY, JSON, OID, Insert, insert
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.sql.selectable import TableValuedAlias

from inbox_outbox_base.databases import taking_statements
from inbox_outbox_base.databases.taking_statements import Aging
from inbox_outbox_base.tables.inbox import Tables

from .drivers.driver import REPORTED
from .numbers import Tid
from .relations import number_of, relation

_COLUMNS = tuple(taking_statements.ROW)


MARK = literal_column(f"set_config('{REPORTED}', 'on', true) = 'on'", Boolean())
"""Marks the transaction; always true."""


@cache
def add_at_once(tables: Tables, *, marks: bool = False, in_range: bool = False) -> Insert:
    """The first statement: inserts the row unless its key, or a batch of its consumer, is in flight. It can
    also mark the transaction. A key that must be in the range of the consumer's is inserted only if the
    statement has its own snapshot, so that it sees the newest range."""
    lock_of_key, lock_of_batch = _key_lock(tables), batch_lock(tables)
    # The batch lock is only probed, and released at once; CASE, unlike AND, guarantees that order. The key's
    # lock comes last: if it were kept without a row, a key that nobody takes would seem to be in flight.
    given_back, take = func.pg_advisory_unlock(lock_of_batch), func.pg_try_advisory_xact_lock(lock_of_key)
    ours = case((given_back & MARK if marks else given_back, take), else_=false())
    is_free = case((func.pg_try_advisory_lock(lock_of_batch), ours), else_=false())
    if in_range:
        is_free = case(
            (_HAS_OWN_SNAPSHOT & _is_in_range(tables, _row(tables)["key"]), is_free), else_=false()
        )
    row = select(*_row(tables).values()).where(is_free)
    added = insert(tables.message).from_select(_COLUMNS, row).on_conflict_do_nothing()
    return added.execution_options(preserve_rowcount=True)


@cache
def add_in_order(
    tables: Tables, lock: Literal["key", "batch"], *, with_digests: bool = False, in_range: bool = False
) -> Select[Any]:
    """The patient statement: takes a lock, waits for keys in flight, restores the lock timeout, and returns
    the inserted keys. Because of the ORDER BY, the guard runs before the first row is written, and two
    batches meet their common keys in the same order, so that they cannot deadlock."""
    c, row = tables.message.c, _row(tables)
    if lock == "key":
        held: ColumnElement[Any] = func.pg_advisory_xact_lock(_key_lock(tables))
    else:
        held = func.pg_advisory_xact_lock_shared(batch_lock(tables))
    guard = select(
        func.current_setting("lock_timeout").label("before"),
        func.set_config("lock_timeout", bindparam("timeout", type_=Text), literal(True)).label("during"),
        held.label("held"),
    ).cte("guard")
    keys = _given_keys_and_digests() if with_digests else _given_keys()
    rows = (
        select(
            row["consumer"],
            keys.c.key,
            row["claim"],
            keys.c.digest if with_digests else row["digest"],
        )
        .select_from(guard.join(keys, literal(True)))
        .order_by(keys.c.key.collate("C"))
    )
    if in_range:
        rows = rows.where(_is_in_range(tables, keys.c.key))
    added = insert(tables.message).from_select(_COLUMNS, rows).on_conflict_do_nothing()
    taken = added.returning(c.key).cte("taken")
    before = select(guard.c.before).scalar_subquery()
    restored = func.set_config("lock_timeout", before, literal(True))
    keys_taken = func.array_agg(taken.c.key, type_=ARRAY(Text))
    return select(keys_taken.label("keys"), restored.label("restored"))


def _is_in_range(tables: Tables, key: ColumnElement[str]) -> ColumnElement[bool]:
    """Whether the consumer takes this key, which names its time. Outside of its range, a table with
    partitions may have none for it, and to insert it would abort the transaction."""
    first, until = (_of_horizon(tables, name) for name in ("keys_from", "keys_until"))
    above_all: ColumnElement[str] = literal_column("'~'")  # no key of any form begins with it
    is_below_end = key.collate("C") < func.coalesce(until, above_all)
    return (key.collate("C") >= func.coalesce(first, literal_column("''"))) & is_below_end


def _of_horizon(tables: Tables, name: str) -> ColumnElement[str]:
    c = tables.horizon.c
    return select(c[name]).where(c.consumer == _row(tables)["consumer"]).scalar_subquery()


_HAS_OWN_SNAPSHOT: ColumnElement[bool] = literal_column(
    "left(current_setting('transaction_isolation'), 4) = 'read'", Boolean()
)


@cache
def key_range(tables: Tables) -> Select[bool, str, str]:
    """Whether this statement sees the newest commit, and which keys the consumer takes: from the
    first one on, and below the second."""
    first, until = (_of_horizon(tables, name) for name in ("keys_from", "keys_until"))
    return select(_HAS_OWN_SNAPSHOT.label("is_newest"), first, until)


@cache
def try_horizon(tables: Tables) -> Insert:
    """Fails in a transaction that does not see the newest row of the consumer. Roll it back."""
    none: ColumnElement[str] = literal_column("''")
    row = {"consumer": _row(tables)["consumer"], "keys_from": none, "keys_gone": none}
    return insert(tables.horizon).values(row).on_conflict_do_nothing()


@cache
def wait_for_key(tables: Tables) -> Select[Any]:
    """Wait, for a limited time, until no transaction is taking the key any more."""
    timeout = func.set_config("lock_timeout", bindparam("timeout", type_=Text), literal(True))
    held: ColumnElement[Any] = func.pg_advisory_xact_lock(_key_lock(tables))
    return select(timeout.label("during"), held.label("held"))


@cache
def _row(tables: Tables) -> dict[str, BindParameter[Any]]:
    """The parameters of a new row. All places in a statement share them, because SQLAlchemy's time for a
    statement grows with their number."""
    return {name: bindparam(name, type_=tables.message.c[name].type) for name in _COLUMNS}


def _key_lock(tables: Tables) -> ColumnElement[int]:
    """The number of a key's advisory lock. It has 64 bits, so two keys rarely share one; if they do, one
    waits for the other needlessly. The server computes it, which costs no parameters."""
    row = _row(tables)
    return func.hashtextextended(
        row["key"], func.hashtextextended(row["consumer"], number_of(tables.message))
    )


def batch_lock(tables: Tables) -> ColumnElement[int]:
    """The number of the advisory lock shared by all batches of a consumer."""
    seed = number_of(tables.message) + literal_column("4294967296")  # larger than any oid: no key's seed
    return func.hashtextextended(_row(tables)["consumer"], seed)


_PLACE: ColumnElement[str] = literal_column("ctid", Tid())
_PARTITION: ColumnElement[int] = literal_column("tableoid", OID())


@cache
def begin_purge(table: Table) -> Select[bool]:
    """Whether the table has partitions. If this process hangs before it commits, the server ends its session:
    others that wait for a row of the batch must not hang. Keys are looked up one by one: each is in one
    partition, and other joins read them all."""
    inherits = table_named("pg_inherits", column("inhparent", OID))
    are_some = exists().where(inherits.c.inhparent == cast(relation(table), OID))
    settings = {
        "idle_in_transaction_session_timeout": "10s",
        "enable_hashjoin": "off",
        "enable_mergejoin": "off",
    }
    return select(
        are_some, *(func.set_config(name, value, literal(True)) for name, value in settings.items())
    )


@cache
def delete_batch(aging: Aging, *, has_partitions: bool) -> Executable:
    """Delete the oldest rows that nobody has locked. They are found by an index, and deleted by their place
    in the table. A place is a row in each partition, so partitions' rows are deleted by their keys."""
    c = aging.table.c
    by: ColumnElement[Any] = c.key if has_partitions else _PLACE
    chosen = taking_statements.oldest(aging).with_only_columns(by).with_for_update(skip_locked=True)
    its = [c.consumer == bindparam("consumer_")]
    if has_partitions:
        its.append(c.key == chosen.cte("chosen").c.key)
        if aging.time == "key":
            its.append(c.key < bindparam("horizon"))  # leaves out the partitions of days
    else:
        its.append(any_(func.array(chosen.scalar_subquery())) == _PLACE)
    return delete(aging.table).where(*its).returning(c[aging.time])


@cache
def find_loads(tables: Tables) -> Select[int, str, str]:
    """The first and the last place of one consumer's rows that were written with these loads, in each
    partition. No index holds them, so the table is read once. A place is never stored: VACUUM FULL, CLUSTER
    or a restore changes it."""
    its = tables.message.c.consumer == bindparam("consumer_"), _is_of_loads(tables)
    first, last = (cast(end(_PLACE), Text) for end in (func.min, func.max))
    found = select(_PARTITION, first, last).select_from(tables.message).where(*its)
    return found.group_by(_PARTITION).order_by(_PARTITION)


@cache
def delete_loads(tables: Tables) -> Select[int, str]:
    """Delete the first of these loads' rows between two places of a partition, and return how many, and the
    last place."""
    first, until = (cast(bindparam(name, type_=Text), Tid()) for name in ("first", "until"))
    is_there = bindparam("partition", type_=OID()) == _PARTITION
    chosen = (
        select(_PLACE)
        .select_from(tables.message)
        .where(is_there, first <= _PLACE, until > _PLACE, _is_of_loads(tables))
        .limit(bindparam("batch", type_=Integer))
        .with_for_update(skip_locked=True)
    )
    places = func.array(chosen.scalar_subquery())
    these = delete(tables.message).where(is_there, any_(places) == _PLACE)
    gone = these.returning(_PLACE.label("place")).cte("gone")
    return select(func.count(), cast(func.max(gone.c.place), Text)).select_from(gone)


def _is_of_loads(tables: Tables) -> ColumnElement[bool]:
    return tables.message.c.load == any_(bindparam("loads", type_=ARRAY(BigInteger)))


@cache
def find_many(tables: Tables, *, in_range: bool = False) -> Select[Any]:
    """Which of some keys exist. They are one parameter: the statement is the same for any number of keys.
    Where keys name their time, the table may have a partition for each day: the first and the last key say
    which ones to read."""
    c = tables.message.c
    keys = func.array(select(_given_keys().c.key).scalar_subquery())
    found = select(c.key, c.claim, c.digest).where(c.consumer == bindparam("consumer_"), c.key == any_(keys))
    return found.where(c.key >= bindparam("first"), c.key <= bindparam("last")) if in_range else found


def _given_keys() -> TableValuedAlias:
    """The keys of a batch as rows. They are sent as JSON: for both ends, this is faster than a text array."""
    keys = cast(bindparam("keys", type_=Text), JSON)
    return func.json_array_elements_text(keys).table_valued("key", name="given").render_derived()


def _given_keys_and_digests() -> Subquery:
    """The same with each key's digest, in hexadecimal or null."""
    pairs = func.json_array_elements(cast(bindparam("keys", type_=Text), JSON)).table_valued(
        column("pair", JSON), name="given"
    )
    pair = pairs.render_derived().c.pair
    digest = func.decode(pair[1].as_string(), "hex", type_=LargeBinary)
    return select(pair[0].as_string().label("key"), digest.label("digest")).subquery()
