"""Why a message waits."""

import json
from collections.abc import Mapping
from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import Connection, Integer, Row, Select, Table, bindparam, func, literal, not_, select

from inbox_outbox_base.databases.registry import looking, relaying
from inbox_outbox_base.databases.relaying import ALL_TOPICS
from inbox_outbox_base.databases.taking_statements import clock
from inbox_outbox_base.tables.times import readable
from outbox._operating import statements
from outbox._operating.sending import is_alive, senders
from outbox._operating.stored_message import MessageState, StoredMessage
from outbox._publishing.buckets import generations
from outbox.schema import OutboxTables

_COUNTED = 1_000
"""The most messages counted that are before one."""
_SOON = 120
"""Seconds up to which a time is said as a number of them."""


class Reasons:
    """What messages can wait for, read once."""

    def __init__(self, connection: Connection, tables: OutboxTables) -> None:
        self._connection, self._tables = connection, tables
        self._known = generations(connection, tables)
        self._owners = {row.bucket: row.epoch for row in connection.execute(statements.buckets(tables))}
        self._relays = {row.epoch: row for row in connection.execute(statements.relays(tables))}
        self._senders = senders(connection, tables)
        self._pauses = {row.topic: row for row in connection.execute(statements.pauses(tables))}
        self._now: datetime = connection.execute(clock()).scalar_one()
        self._marks = relaying(connection.dialect.name, tables).marks(connection)
        self._firsts: dict[str, Row[Any] | None] = {}
        """By key, its first message whose topic is not paused."""
        self._locks: dict[tuple[object, ...], tuple[str | None, str | None]] = {}
        """By table and key, who has locked the row, and what cannot be seen."""

    def of(self, message: StoredMessage, row: Row[Any]) -> tuple[str, str | None]:
        """Why a message is not sent now, and the id of the one that it is behind, if that is why."""
        if message.state is MessageState.DEAD:
            return "it is dead: it is not sent unless somebody retries it; its key has gone on", None
        if message.state is MessageState.DELAYED:
            return self._until_due(message), None
        place = row.bucket, row.sequence
        return self._in_line(message.topic, message.key, message.state, message.retry_at, *place)

    def _until_due(self, message: StoredMessage) -> str:
        due = message.available_at
        if due is None or due > self._now:
            return f"it is not due before {_time(due)}"
        return f"it has been due since {_time(due)}, and no relay has moved it: {self._relay_of(None)}"

    def _in_line(
        self,
        topic: str,
        key: str | None,
        state: str,
        retry_at: datetime | None,
        bucket: int,
        sequence: int,
        *,
        is_first: bool = False,
    ) -> tuple[str, str | None]:
        if bucket not in self._owners:
            return f"its bucket, {bucket}, does not exist: relays take it in", None
        if state == MessageState.HELD:
            return "it is held: it and its key wait until somebody retries or drops it", None
        if (sender := self._senders.get((bucket, sequence))) is not None:
            said = "is sending it now" if is_alive(sender) else "was lost while it was sending it"
            return self._locked(f"relay {sender.name} {said}", bucket, sequence), None
        if (pause := self._pauses.get(topic) or self._pauses.get(ALL_TOPICS)) is not None:
            return _paused(pause), None
        if (away := self._no_relay(bucket)) is not None:
            return self._locked(away, bucket), None
        if key is not None and not is_first and (before := self._before(key, sequence)) is not None:
            why, _ = self._in_line(
                before.topic, key, before.state, _retry(before), before.bucket, before.sequence, is_first=True
            )
            where = "" if before.bucket == bucket else ", in a bucket of another generation"
            return f"it is behind message {before.id} of its key{where}: {why}", before.id
        return self._locked(self._turn(topic, state, retry_at, bucket, sequence), bucket, sequence), None

    def _locked(self, why: str, bucket: int, sequence: int | None = None) -> str:
        """The reason, and before it which of the rows that a relay changes for this message somebody else has
        locked."""
        epoch = self._owners[bucket]
        relay = self._relays.get(epoch)
        rows: list[tuple[str, Table, Mapping[str, int]]] = []
        if sequence is not None:
            rows.append(("its row is", self._tables.message, {"bucket": bucket, "sequence": sequence}))
        rows.append((f"the row of its bucket, {bucket}, is", self._tables.bucket, {"bucket": bucket}))
        if relay is not None:
            rows.append((f"the row of relay {relay.name} is", self._tables.relay, {"epoch": epoch}))
        for what, table, key in rows:
            holder, unseen = self._lock_of(table, key)
            if unseen is not None:
                return f"{why} (not seen: {unseen})"
            if holder is not None:
                return f"{what} locked by {holder}; {why}"
        return why

    def _lock_of(self, table: Table, key: Mapping[str, int]) -> tuple[str | None, str | None]:
        """Who has locked a row: many messages wait for the same ones."""
        place = table.name, *key.values()
        if place not in self._locks:
            looker = looking(self._connection.dialect.name)
            self._locks[place] = looker.locked_by(self._connection, table, key)
        return self._locks[place]

    def _turn(self, topic: str, state: str, retry_at: datetime | None, bucket: int, sequence: int) -> str:
        """Nothing is before it but its time, or other keys."""
        relay = self._relays[self._owners[bucket]]
        for each in json.loads(relay.lanes or "{}").get("topics", ()):
            until = datetime.fromisoformat(each["until"])
            if each["topic"] == topic and until > self._now:
                tries = f"relay {relay.name} tries it again {self._when(until)}"
                return f"the broker rejects its topic, {topic}, and {tries}: {each['reason']}"
        if state in (MessageState.WAITING, MessageState.UNKNOWN):
            taken = "was not taken" if state == MessageState.WAITING else "may have been taken or not"
            if retry_at is not None and retry_at > self._now:
                return f"it {taken}, and is sent again {self._when(retry_at)}"
            return f"it {taken}, and is due to be sent again by relay {relay.name}"
        if relay.crowded_by is not None:
            return (
                f"relay {relay.name} remembers very many messages that cannot be sent, most of them of topic "
                f"{relay.crowded_by}, and others may wait: pause that topic"
            )
        before = self._count_before(bucket, sequence)
        return f"its turn comes: relay {relay.name} sends its bucket, {bucket}, with {before} before it"

    def _count_before(self, bucket: int, sequence: int) -> str:
        low = self._marks.get(bucket, 0)
        given = {"bucket_": bucket, "low_": low, "high": sequence - 1, "limit": _COUNTED}
        number = self._connection.execute(_count_before(self._tables), given).scalar_one()
        return f"{number:,}{'+' if number >= _COUNTED else ''} message{'' if number == 1 else 's'}"

    def _no_relay(self, bucket: int) -> str | None:
        """Why no relay has the bucket, if none has."""
        relay = self._relays.get(self._owners[bucket])
        if relay is not None and is_alive(relay):
            return None
        return self._relay_of(bucket)

    def _relay_of(self, bucket: int | None) -> str:
        if not any(is_alive(each) for each in self._relays.values()):
            return "no relay is running"
        if bucket is None:
            return "relays move it when they look next"
        relay = self._relays.get(self._owners[bucket])
        lost = "" if relay is None else f", because {relay.name} is lost"
        return f"its bucket, {bucket}, has no relay{lost}: another one takes it over"

    def _before(self, key: str, sequence: int) -> Row[Any] | None:
        """The first message of this key, in the bucket that it has in any generation, if it must leave
        earlier. Those of paused topics hold nothing up."""
        if key not in self._firsts:
            buckets = [each.bucket_of(key) for each in self._known]
            found = [row for bucket in buckets if (row := self._first(key, bucket)) is not None]
            self._firsts[key] = min(found, key=lambda row: row.sequence, default=None)
        first = self._firsts[key]
        return None if first is None or first.sequence >= sequence else first

    def _first(self, key: str, bucket: int) -> Row[Any] | None:
        low, paused = self._marks.get(bucket, 0), [*self._pauses]
        given = {"bucket_": bucket, "low_": low, "key_": key, "paused": paused}
        found: Row[Any] | None = self._connection.execute(_first_of_key(self._tables), given).first()
        return found

    def _when(self, time: datetime) -> str:
        seconds = (time - self._now).total_seconds()
        return f"in {seconds:.0f} s" if seconds <= _SOON else f"at {_time(time)}"


def _paused(pause: Row[Any]) -> str:
    by = "" if pause.paused_by is None else f" by {pause.paused_by}"
    why = "" if pause.why is None else f": {pause.why}"
    what = "all topics are" if pause.topic == ALL_TOPICS else "its topic is"
    return f"{what} paused{by} since {_time(pause.paused_at)}{why}"


def _retry(row: Row[Any]) -> datetime | None:
    return row.retry_at if row.attempts else None


def _time(time: datetime | None) -> str:
    return "an unreadable time" if time is None else f"{time:%Y-%m-%d %H:%M:%S} UTC"


@cache
def _count_before(tables: OutboxTables) -> Select[Any]:
    """Count the messages in a range of a bucket, up to a limit."""
    high = tables.message.c.sequence <= bindparam("high")
    rows = select(literal(1).label("row")).where(statements.above(tables), high)
    return select(func.count()).select_from(rows.limit(bindparam("limit", type_=Integer)).subquery())


@cache
def _first_of_key(tables: OutboxTables) -> Select[Any]:
    """The first message of a key in a bucket whose topic is not paused."""
    c = tables.message.c
    retry_at = readable(c.retry_at).label("retry_at")
    state = statements.state_of(tables.message).label("state")
    found = select(c.id, c.topic, c.attempts, retry_at, c.bucket, c.sequence, state)
    return (
        found.where(
            statements.above(tables),
            c.key == bindparam("key_", type_=c.key.type),
            not_(c.topic.in_(bindparam("paused", expanding=True))),
        )
        .order_by(c.sequence)
        .limit(1)
    )
