"""The inbox on an operator's first page, bounded at any number of keys."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from sqlalchemy import ColumnElement, CompoundSelect, Connection, Engine, Table, select

from inbox._status_mode.stores import Status
from inbox_outbox_base.checks.missing import is_there, missing_table
from inbox_outbox_base.checks.retention import MARGIN, SKEW, Retention
from inbox_outbox_base.databases import taking_statements
from inbox_outbox_base.databases.registry import looking, taking
from inbox_outbox_base.databases.taking import at_level
from inbox_outbox_base.errors.inbox import TablesMissing
from inbox_outbox_base.tables.inbox import Tables, tables
from inbox_outbox_base.transactions.connect import connected, transacted
from inbox_outbox_base.transactions.policy import DEAD_RETENTION, Policy, look
from inbox_outbox_base.transactions.safety import check_sees_all
from inbox_outbox_base.words.overviews import Count, DatabaseOverview

from . import overview_statements
from .partition_days import Days, days_of

TAKEN_WINDOW = timedelta(hours=1)
REFUSED_WINDOW = timedelta(days=1)
_COUNTED = 1_000
"""The most messages counted in each status, and of loads and rejected rows."""
_TAKEN, _LEAST_TAKEN = 20_000, 100
"""The most keys counted of all consumers, and at least of each one."""
_CONSUMERS, _TOGETHER = 100, 20
"""The most consumers, and those about which one statement asks."""


@dataclass(frozen=True, slots=True)
class PurgeOverview:
    """The last purge of a consumer."""

    begun_at: datetime
    ended_at: datetime | None
    """None if it is running, or has died."""
    rows: int
    """Deleted messages."""
    finished: bool
    """Whether it has deleted all old rows."""


@dataclass(frozen=True, slots=True)
class ConsumerOverview:
    """One consumer, in both modes."""

    consumer: str
    policy: Policy | None
    """None if nothing is stored; then a purge assumes 7 days, and 30 for dead and halted messages."""
    taken: Count
    """Keys taken by the exactly-once path within the last hour, without those of bulk writers, and messages
    of status-table mode that were consumed, or discarded, within it."""
    consuming: Count
    """Messages of status-table mode that a handler has, or had."""
    lost: Count
    """Those of them whose lease is over: the handler has died, or the next delivery is late."""
    failed: Count
    dead: Count
    """They wait for an operator, as do halted ones."""
    halted: Count
    loads: Count
    """Partitions in the ledger of bulk writers."""
    last_load: datetime | None
    rejected: Count
    """Rows that bulk writers have set aside."""
    mismatches: Count
    """Keys that came with another payload within the last day, and were refused: see `refused`. Once somebody
    has looked at them, `dismiss` them."""
    too_old: Count
    """Keys whose messages were refused within the last day because they are older than the retention, and
    that were not taken since."""
    given_up: Count
    """Keys whose messages listeners have given up within the last day, and that were not taken since; those
    without a key together are one. Without those of status-table mode that have a record."""
    oldest: datetime | None
    """When its oldest key was taken, or consumed; None if it has none."""
    overdue: float
    """By how many seconds its oldest key, message or load is past its retention, because no purge has deleted
    it; 0 if none is. Of keys in partitions, the oldest partition counts, a day after its last key was; of
    older ones of such a consumer, their own time."""
    last_purge: PurgeOverview | None
    """None if no purge has been recorded."""
    partitions_ahead: float | None
    """For how many seconds from now on it has partitions, negative if they have ended; None if it has none.
    Then its messages wait: `partitions` makes more."""

    @property
    def refused(self) -> Count:
        """All of these three."""
        parts = (self.mismatches, self.too_old, self.given_up)
        return Count(sum(each.number for each in parts), self.mismatches.precision)


@dataclass(frozen=True, slots=True)
class InboxOverview:
    """What an operator sees first. Numbers are taken at slightly different moments."""

    database: DatabaseOverview
    consumers: tuple[ConsumerOverview, ...]
    """By name, 100 at most: of more, those with dead or halted messages first, and then the first by name."""
    has_more_consumers: bool
    """Whether consumers were left out, because there are very many."""


def overview(engine: Engine, *, schema: str | None = None) -> InboxOverview:
    """The inbox as an operator sees it first: by consumer, what was taken, what has failed or waits for
    somebody, and whether keys are kept for longer than they should be.

    The cost is bounded, however many keys there are: rows are counted up to a limit, and each `Count` says
    whether it is exact. `status` counts all rows, and costs as much. Status-table mode on Redis is not part
    of it: see `list_messages`.

    Args:
        engine: the Engine of the inbox's database.
        schema: the PostgreSQL schema of the tables.

    Raises:
        TablesMissing: the tables do not exist.
        UnsafeDatabase: row-level policies hide rows from this role.
    """
    database = taking(engine.dialect.name)
    all_tables = tables(schema)
    with connected(at_level(engine, database.own_isolation)) as connection:
        return transacted(connection, lambda each: _overview(each, all_tables))


def _overview(connection: Connection, tables: Tables) -> InboxOverview:
    found = [
        each
        for each in (tables.message, tables.status, tables.ledger, tables.rejected, tables.refused)
        if is_there(connection, each)
    ]
    if not found or not is_there(connection, tables.consumer):
        raise TablesMissing(missing_table(tables.consumer if found else tables.message))
    check_sees_all(connection, [*found, tables.consumer])
    looker = looking(connection.dialect.name)
    looker.prepare(connection)
    database = looker.look(connection, [*found, tables.consumer])
    stopped = set(_stopped(connection, tables.status)) if tables.status in found else set()
    names = {name for each in (*found, tables.consumer) for name in _names(connection, each)} | stopped
    chosen = sorted(names, key=lambda name: (name not in stopped, name.encode()))[:_CONSUMERS]
    shown = sorted(chosen, key=str.encode)
    answers = {name: _Answers() for name in shown}
    most = max(_LEAST_TAKEN, _TAKEN // max(1, len(shown)))
    takers = tuple(each for each in (tables.message, tables.status) if each in found)
    times = {"since": database.now - TAKEN_WINDOW, "now": database.now}
    asked: list[tuple[Table, Callable[[Tables, int], CompoundSelect[Any]], dict[str, Any]]] = [
        (tables.message, overview_statements.taken, {"most": most, "since": times["since"]}),
        (tables.status, overview_statements.claimed, {"most": _COUNTED, "most_consumed": most} | times),
        (tables.ledger, overview_statements.loads, {"most": _COUNTED}),
        (tables.rejected, overview_statements.rejected, {"most": _COUNTED}),
        (
            tables.refused,
            partial(overview_statements.refused, takers=takers),
            {"most": _COUNTED, "since": database.now - REFUSED_WINDOW},
        ),
    ]
    for table, statement, more in asked:
        if table in found:
            _ask(connection, tables, shown, statement, more, answers)
    purges = _purges(connection, tables.purge)
    policies = look(connection, tables)
    parts = days_of(connection, tables.message, policies) if tables.message in found else {}
    consumers = [
        _consumer(
            name, policies.get(name), answers[name], most, database.now, purges.get(name), parts.get(name)
        )
        for name in shown
    ]
    return InboxOverview(database, tuple(consumers), len(names) > _CONSUMERS)


def _names(connection: Connection, table: Table, *where: ColumnElement[bool]) -> Iterator[str]:
    """The first consumers in a table, each by a jump in the index. As one recursive statement, MariaDB would
    read the whole index for each."""
    following, name = taking_statements.next_consumer(table).where(*where), ""
    for _ in range(_CONSUMERS + 1):
        name = connection.execute(following, {"consumer_": name}).scalar_one()
        if name is None:
            return
        yield name


def _stopped(connection: Connection, table: Table) -> Iterator[str]:
    """The first consumers with messages that wait for somebody."""
    for status in (Status.DEAD, Status.HALTED):
        yield from _names(connection, table, table.c.status == status)


def _purges(connection: Connection, table: Table) -> dict[str, PurgeOverview]:
    if not is_there(connection, table):
        return {}
    check_sees_all(connection, [table])
    c = table.c
    found = connection.execute(select(c.consumer, c.begun_at, c.ended_at, c.rows, c.finished))
    return {row[0]: PurgeOverview(*row[1:]) for row in found}


@dataclass(slots=True)
class _Answers:
    """What the statements have said about one consumer."""

    rows: dict[str, int] = field(default_factory=dict)
    times: dict[str, datetime] = field(default_factory=dict)

    def count(self, what: str, most: int = _COUNTED) -> Count:
        return Count.up_to(self.rows.get(what, 0), most)

    def count_part(self, what: str, whole: str) -> Count:
        """A part of what was read of a whole."""
        return Count(self.rows.get(what, 0), self.count(whole).precision)

    def oldest(self, *what: str) -> datetime | None:
        return min((self.times[each] for each in what if each in self.times), default=None)


def _ask(
    connection: Connection,
    tables: Tables,
    names: Sequence[str],
    statement: Callable[[Tables, int], CompoundSelect[Any]],
    more: dict[str, Any],
    answers: dict[str, _Answers],
) -> None:
    for start in range(0, len(names), _TOGETHER):
        some = names[start : start + _TOGETHER]
        rows = connection.execute(statement(tables, len(some)), overview_statements.given(some) | more)
        for row in rows:
            mine = answers[some[row.number]]
            mine.rows[row.what] = row.rows
            if row.time is not None:
                mine.times[row.what] = row.time


def _both(one: Count, other: Count) -> Count:
    is_exact = one.precision == other.precision == "exact"
    return Count(one.number + other.number, "exact" if is_exact else "at least")


def _consumer(
    name: str,
    policy: Policy | None,
    found: _Answers,
    most: int,
    now: datetime,
    last_purge: PurgeOverview | None,
    days: Days | None,
) -> ConsumerOverview:
    kept = Retention().duration if policy is None else policy.retention
    dead = policy.dead_retention if policy and policy.dead_retention else DEAD_RETENTION
    if policy is not None and policy.key_time is not None:
        # A key's time may be a day later than when it was taken, and one purge closes what the next deletes.
        kept += 2 * SKEW
        dead = max(dead, kept)
    settled = ("oldest", "oldest load", *(f"oldest {each}" for each in (Status.CONSUMED, Status.FAILED)))
    given_up = tuple(f"oldest {each}" for each in (Status.DEAD, Status.HALTED))
    oldest_settled = found.oldest(*settled) if days is None else days.first_end
    late = (
        (now - oldest - retention - MARGIN).total_seconds()
        for oldest, retention in ((oldest_settled, kept), (found.oldest(*given_up), dead))
        if oldest is not None
    )
    return ConsumerOverview(
        consumer=name,
        policy=policy,
        taken=_both(found.count("taken", most), found.count("consumed", most)),
        **{each.value: found.count(each) for each in Status if each is not Status.CONSUMED},
        lost=found.count_part("lost", Status.CONSUMING.value),
        loads=found.count("loads"),
        last_load=found.times.get("newest load"),
        rejected=found.count("rejected"),
        mismatches=found.count_part("mismatch", "refused"),
        too_old=found.count_part("too_old", "refused"),
        given_up=found.count_part("given up", "refused"),
        oldest=found.oldest("oldest", "oldest load", f"oldest {Status.CONSUMED}"),
        overdue=max([0.0, *late]),
        last_purge=last_purge,
        partitions_ahead=None if days is None else (days.end - now).total_seconds(),
    )
