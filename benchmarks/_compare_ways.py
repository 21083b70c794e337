"""Ways to handle a message once. Each one is short, and does what the documentation of its library says.

A way gets the message's key and its effect. It returns if the message is to be acknowledged, and raises
`Later` if the broker is to deliver it again.
"""

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import redis
from sqlalchemy import Column, Connection, Engine, MetaData, Table, Text, insert, select
from sqlalchemy.dialects import postgresql

from inbox import Inbox, SqlStore, StatusInbox
from inbox.errors import NotTaken

from ._measure import version_of

LEASE = 2
"""Seconds after which a dead worker's lease or invocation is over, where a way has such a thing."""
LOCK = 600
"""Seconds after which a lock expires: longer than any task."""
OVERLAP = 1
"""Seconds that an effect takes if two deliveries are to overlap."""

metadata = MetaData()
effect_row = Table("effect", metadata, Column("key", Text, nullable=False))
seen = Table("seen", metadata, Column("key", Text, index=True))
taken = Table("taken", metadata, Column("key", Text, primary_key=True))


class Later(Exception):
    """The message was not handled: deliver it again."""


@dataclass(frozen=True, slots=True)
class Effect:
    """One row for each time that the message took effect."""

    engine: Engine
    key: str
    fault: str
    """The point at which the process is killed; or "two", or nothing."""

    def write(self, connection: Connection) -> int:
        """In the way's own transaction."""
        self._begin()
        connection.execute(insert(effect_row), {"key": self.key})
        self.reach("after")
        return 1

    def write_alone(self) -> int:
        """In a transaction of its own, as an effect in another system would be."""
        self._begin()
        with self.engine.begin() as connection:
            connection.execute(insert(effect_row), {"key": self.key})
        self.reach("after")
        return 1

    def _begin(self) -> None:
        self.reach("before")
        if self.fault == "two":
            time.sleep(OVERLAP)

    def reach(self, point: str) -> None:
        """Kill this process if it is to die here."""
        if self.fault == point:
            os.kill(os.getpid(), signal.SIGKILL)


Handler = Callable[[], object]
Way = Callable[[Effect, "redis.Redis"], Handler]


def look_up(effect: Effect, _: "redis.Redis") -> Handler:
    """Look the key up, act if it is not there, and add it."""

    def handle() -> None:
        with effect.engine.begin() as connection:
            if connection.execute(select(seen).where(seen.c.key == effect.key)).first() is None:
                effect.write(connection)
                connection.execute(insert(seen), {"key": effect.key})

    return handle


def unique_key(effect: Effect, _: "redis.Redis") -> Handler:
    """Add the key to a table that has it only once, and act if it was added."""
    add = postgresql.insert(taken).on_conflict_do_nothing().returning(taken.c.key)

    def handle() -> None:
        with effect.engine.begin() as connection:
            if connection.execute(add, {"key": effect.key}).first() is not None:
                effect.write(connection)

    return handle


def redis_lock(effect: Effect, client: "redis.Redis") -> Handler:
    """Act while holding a lock, and release it; if another worker holds it, do nothing."""

    def handle() -> None:
        _locked(client, effect, LOCK)

    return handle


def redis_wait(effect: Effect, client: "redis.Redis") -> Handler:
    """The same; but if another worker holds the lock, the message is delivered again."""

    def handle() -> None:
        if not _locked(client, effect, LEASE):
            raise Later

    return handle


def _locked(client: "redis.Redis", effect: Effect, expires: int) -> bool:
    name = f"lock:{effect.key}"
    if not client.set(name, "1", nx=True, ex=expires):
        return False
    try:
        effect.write_alone()
    finally:
        client.delete(name)
    return True


def redis_mark(effect: Effect, client: "redis.Redis") -> Handler:
    """Mark the key for a day, and act if it had no mark."""

    def handle() -> None:
        if client.set(f"mark:{effect.key}", "1", nx=True, ex=86_400):
            effect.write_alone()

    return handle


def powertools(effect: Effect, client: "redis.Redis") -> Handler:
    """The idempotency of AWS Lambda Powertools, with records in Redis."""
    from aws_lambda_powertools.utilities.idempotency import IdempotencyConfig, idempotent_function
    from aws_lambda_powertools.utilities.idempotency.exceptions import IdempotencyAlreadyInProgressError
    from aws_lambda_powertools.utilities.idempotency.persistence.redis import RedisCachePersistenceLayer

    def handle_order(*, message: dict[str, Any]) -> dict[str, int]:
        return {"rows": effect.write_alone()}

    config = IdempotencyConfig(event_key_jmespath="key")
    once = idempotent_function(
        handle_order,
        data_keyword_argument="message",
        persistence_store=RedisCachePersistenceLayer(client=client),
        config=config,
    )

    def handle() -> None:
        config.register_lambda_context(_Invocation())
        try:
            once(message={"key": effect.key})
        except IdempotencyAlreadyInProgressError as error:
            raise Later from error

    return handle


class _Invocation:
    """What Powertools asks of a Lambda's context."""

    def get_remaining_time_in_millis(self) -> int:
        return LEASE * 1000


def dbos_transaction(effect: Effect, _: "redis.Redis") -> Handler:
    """A workflow of DBOS with one transaction; the key is the workflow's id."""
    from dbos import SQLAlchemyDatasource

    source = SQLAlchemyDatasource.create(effect.engine.url.render_as_string(False), engine=effect.engine)
    write = source.transaction(lambda: effect.write(source.sql_session()), name="write")
    return _workflow(effect, write)


def dbos_step(effect: Effect, _: "redis.Redis") -> Handler:
    """A workflow of DBOS with one step; the key is the workflow's id."""
    from dbos import DBOS

    return _workflow(effect, DBOS.step(name="write")(lambda: effect.write_alone()))


def _workflow(effect: Effect, write: Callable[[], Any]) -> Handler:
    from dbos import DBOS, SetWorkflowID

    def handle_order() -> int:
        return int(write())

    url = effect.engine.url.render_as_string(False)
    DBOS(config={"name": "compare", "system_database_url": url, "log_level": "CRITICAL"})
    run = DBOS.workflow(name="handle_order")(handle_order)
    DBOS.launch()  # resumes what a killed process has left

    def handle() -> None:
        with SetWorkflowID(effect.key):
            run()

    return handle


def inbox_handler(effect: Effect, _: "redis.Redis") -> Handler:
    """The exactly-once path."""

    def handle() -> None:
        with Inbox("compare").transaction(effect.engine, effect.key) as work:
            if work.is_new:
                effect.write(work.connection)

    return _unless_taken(handle)


def inbox_transact(effect: Effect, _: "redis.Redis") -> Handler:
    """Status-table mode, with the effect in `transact`."""
    orders = StatusInbox("compare-status", store=SqlStore(effect.engine), lease=LEASE)

    def handle() -> None:
        with orders.claim(effect.key) as claim:
            if claim.is_new:
                claim.transact("write", effect.write)

    return _unless_taken(handle)


def inbox_step(effect: Effect, _: "redis.Redis") -> Handler:
    """Status-table mode, with the effect in a step."""
    orders = StatusInbox("compare-status", store=SqlStore(effect.engine), lease=LEASE)

    def handle() -> None:
        with orders.claim(effect.key) as claim:
            if claim.is_new:
                claim.step("write", effect.write_alone)

    return _unless_taken(handle)


def _unless_taken(handle: Callable[[], None]) -> Handler:
    def tell() -> None:
        try:
            handle()
        except NotTaken as reason:
            raise Later from reason

    return tell


WAYS: dict[str, tuple[str, Way]] = {
    "look-up": ("look the key up, then act", look_up),
    "unique-key": ("a unique key, in the same transaction", unique_key),
    "redis-lock": ("a lock in Redis; held: acknowledge", redis_lock),
    "redis-wait": ("a lock in Redis; held: try again", redis_wait),
    "redis-mark": ("a mark in Redis, kept for a day", redis_mark),
    "powertools": ("Powertools {}, Redis", powertools),
    "dbos-transaction": ("DBOS {}, a transaction", dbos_transaction),
    "dbos-step": ("DBOS {}, a step", dbos_step),
    "inbox": ("inbox-outbox, exactly-once path", inbox_handler),
    "inbox-transact": ("inbox-outbox, claim.transact", inbox_transact),
    "inbox-step": ("inbox-outbox, claim.step", inbox_step),
}
"""Title and way, by name."""
_PACKAGES = {
    "powertools": "aws-lambda-powertools",
    "dbos-transaction": "dbos",
    "dbos-step": "dbos",
}


def title_of(name: str) -> str:
    """A way's title, with the version of its library.

    Raises:
        LeftOut: the library is not installed.
    """
    title = WAYS[name][0]
    return title.format(version_of(_PACKAGES[name])) if name in _PACKAGES else title
