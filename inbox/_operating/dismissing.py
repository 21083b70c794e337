"""Operators' decisions about refused messages: somebody has looked at them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from typing import Any, NamedTuple, Self, TypeVar

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Delete,
    Engine,
    Select,
    String,
    Table,
    and_,
    bindparam,
    delete,
    literal,
    select,
)
from sqlalchemy.exc import DBAPIError

from inbox_outbox_base.calls.retry import retry
from inbox_outbox_base.checks import deciding, options
from inbox_outbox_base.checks.keys import Key, encode_key
from inbox_outbox_base.checks.missing import is_there, raise_clearer
from inbox_outbox_base.databases.registry import taking
from inbox_outbox_base.databases.taking import at_level
from inbox_outbox_base.errors import codes
from inbox_outbox_base.errors.inbox import MessageNotFound
from inbox_outbox_base.tables.inbox import tables
from inbox_outbox_base.transactions.connect import connected
from inbox_outbox_base.transactions.recording import Recording
from inbox_outbox_base.transactions.safety import check_sees_all
from inbox_outbox_base.words.deciding import BulkResult, packed
from inbox_outbox_base.words.incoming import Verdict

T = TypeVar("T")

REJECTED = "rejected"
"""The kind of rows that bulk writers have set aside, which have a table of their own."""
KINDS = (*(each.value for each in (Verdict.MISMATCH, Verdict.TOO_OLD, Verdict.DEAD)), REJECTED)
"""What can be dismissed."""
_SEEN = "refused messages"
"""The kind of a listing's `seen`."""
_TOGETHER = 100
"""Keys in one transaction."""
_TRIES = 8
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class SeenRefusal(NamedTuple):
    """The refusals of a key, as they were."""

    consumer: str
    key: str
    """Empty for those that are only counted."""
    times: int | None
    """None: however often. 0: a row that a bulk writer has set aside."""
    last: int | None
    """When it was refused last, in microseconds: the count begins again after a dismissal."""

    @classmethod
    def of(cls, consumer: str, key: str, times: int, last_seen: datetime) -> Self:
        """As they are now."""
        return cls(consumer, key, times, _microseconds(last_seen))


def _microseconds(time: datetime) -> int:
    return (time - _EPOCH) // timedelta(microseconds=1)


def pack(refusals: Sequence[SeenRefusal]) -> str:
    """The `seen` of a listing."""
    return packed(_SEEN, refusals)


def dismiss(
    engine: Engine,
    consumer: str,
    key: Key | None,
    *,
    by: str | None = None,
    why: str | None = None,
    schema: str | None = None,
) -> None:
    """Say that somebody has looked at a refused message, or at a row that a bulk writer has set aside: it is
    no longer listed or counted, until it is refused again. What the inbox knows of the key stays as it is.

    Args:
        engine: the database.
        consumer: whose refusal.
        key: the message's key; None is that of all others together, as `refused` lists them.
        by: who decides, 1 to 255 bytes of UTF-8; None is this host and process.
        why: the reason, 1 to 1,000 characters, if you want to store one.
        schema: the PostgreSQL schema of the tables.

    Raises:
        MessageNotFound: no message or row with this key was refused, or somebody has just dismissed it.
        InvalidOption, InvalidKey: an argument cannot be used.
        TablesMissing: the table does not exist.
        UnsafeDatabase: row-level policies hide rows from this role.
    """
    options.consumer(consumer)
    text = "" if key is None else encode_key(key)
    call = _Dismissal(engine, schema, {}, "dismiss", by, why, {"consumer": consumer, "key": text or None})
    if not call.take([SeenRefusal(consumer, text, None, None)]).done:
        raise MessageNotFound(f"consumer {consumer!r} has no refused message {text!r}")


def dismiss_all(
    engine: Engine,
    *,
    consumer: str | None = None,
    kind: str | None = None,
    seen: str | None = None,
    by: str | None = None,
    why: str | None = None,
    dry_run: bool = False,
    schema: str | None = None,
) -> BulkResult:
    """`dismiss` all refused messages and rows that are there now, a hundred in a transaction.

    Args:
        engine: the database.
        consumer: whose refusals; None: those of all consumers.
        kind: only those of this kind: "mismatch", "too_old", "dead" or "rejected"; None is any.
        seen: only those that a listing has seen (`refused(...).seen`), and only if they were not refused
            again since; None is all that are there when the call begins.
        by: who decides, as for `dismiss`.
        why: the reason, as for `dismiss`.
        dry_run: only count: nothing is changed or stored.
        schema: the PostgreSQL schema of the tables.

    Returns:
        How many keys were dismissed: a number, with `.changed`, how many others were refused again since they
        were seen or since the call began, or were gone. Those are left as they are.

    Raises: as `dismiss`, but no `MessageNotFound`.
    """
    chosen: dict[str, str] = {}
    if consumer is not None:
        chosen["consumer"] = options.consumer(consumer)
    if kind is not None:
        chosen["kind"] = options.one_of("kind", kind, KINDS)
    options.flag("dry_run", dry_run)
    parts = (str, str, deciding.BIG_INTEGER, deciding.BIG_INTEGER)
    named = None if seen is None else [SeenRefusal(*each) for each in deciding.places(seen, _SEEN, parts)]
    told = {"consumer": consumer, "kind": kind, "seen": None if named is None else len(named)}
    call = _Dismissal(engine, schema, chosen, "dismiss_all", by, why, told)
    return call.take(call.every() if named is None else named, dry_run=dry_run)


class _Dismissal:
    """One call."""

    def __init__(
        self,
        engine: Engine,
        schema: str | None,
        chosen: Mapping[str, str],
        action: str,
        by: str | None,
        why: str | None,
        told: Mapping[str, Any],
    ) -> None:
        """`chosen` has the values that a row must have, `told` what is stored about the call."""
        self._engine = at_level(engine, taking(engine.dialect.name).own_isolation)
        self._refused, self._rejected = tables(schema).refused, tables(schema).rejected
        self._chosen = chosen
        who, reason = deciding.operator(by), deciding.reason("why", why)
        self._note = Recording(tables(schema).decision, f"inbox.{action}", who, reason, told)

    def every(self) -> list[SeenRefusal]:
        """What there is now."""
        return self._transact(lambda connection: [*self._every(connection)])

    def _every(self, connection: Connection) -> Iterator[SeenRefusal]:
        consumer, kind = self._chosen.get("consumer"), self._chosen.get("kind")
        for table in self._there(connection):
            c, its = table.c, _columns(table)
            statement = select(c.consumer, c.key, its["times"], its["last"]).order_by(c.consumer, its["last"])
            if consumer is not None:
                statement = statement.where(c.consumer == consumer)
            if kind is not None:
                statement = statement.where(its["kind"] == kind)
            yield from (SeenRefusal.of(*row) for row in connection.execute(statement))

    def _there(self, connection: Connection) -> list[Table]:
        """An application may have no bulk writer."""
        both = is_there(connection, self._rejected)
        return [self._refused, self._rejected] if both else [self._refused]

    def take(self, named: Sequence[SeenRefusal], *, dry_run: bool = False) -> BulkResult:
        """Dismiss part after part, and count."""
        done = changed = 0
        for start in range(0, len(named), _TOGETHER):
            part = partial(self._take, named[start : start + _TOGETHER], dry_run)
            result = self._transact(self._note.once(part))
            done, changed = done + result.done, changed + result.changed
        return BulkResult(done, changed)

    def _take(self, part: Sequence[SeenRefusal], dry_run: bool, connection: Connection) -> BulkResult:
        done, changed, there = 0, 0, self._there(connection)
        for each in part:
            place, is_gone = {"consumer_": each.consumer, "key_": each.key}, True
            for table in there:
                row = connection.execute(_find(table), place).first()
                if row is None or (each.times, each.last) not in (
                    (None, None),
                    (row.times, _microseconds(row.last)),
                ):
                    continue
                if any(getattr(row, name) != value for name, value in self._chosen.items()):
                    break
                # It may be refused again at any time, and that has to be seen.
                this = place | {"times_": row.times, "last_": row.last}
                if dry_run or connection.execute(_delete(table), this).rowcount:
                    is_gone = False
            else:
                done, changed = done + (not is_gone), changed + is_gone
        if not dry_run:
            self._note.note(connection, done)
        return BulkResult(done, changed)

    def _transact(self, work: Callable[[Connection], T]) -> T:
        def transaction() -> T:
            with connected(self._engine) as connection, connection.begin():
                try:
                    check_sees_all(connection, self._there(connection))
                    return work(connection)
                except DBAPIError as error:
                    raise_clearer(connection, self._refused, error)

        return retry(transaction, _TRIES, lambda error, _: codes.is_transient(error))


def _columns(table: Table) -> dict[str, ColumnElement[Any]]:
    """What tells one state of a row from another."""
    c = table.c
    if "verdict" in c:
        return {"kind": c.verdict, "times": c.times, "last": c.last_seen}
    return {"kind": literal(REJECTED, String), "times": literal(0, BigInteger), "last": c.rejected_at}


@cache
def _find(table: Table) -> Select[Any]:
    its = (column.label(name) for name, column in _columns(table).items())
    return select(table.c.consumer, table.c.key, *its).where(_this(table))


@cache
def _delete(table: Table) -> Delete:
    same = (
        column == bindparam(f"{name}_", type_=column.type)
        for name, column in _columns(table).items()
        if name != "kind"
    )
    return delete(table).where(_this(table), *same)


def _this(table: Table) -> ColumnElement[bool]:
    c = table.c
    return and_(*(c[name] == bindparam(f"{name}_", type_=c[name].type) for name in ("consumer", "key")))
