"""A message is blamed for what came out of its handler's body, and for nothing else."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
import redis
from sqlalchemy import URL, Connection, Engine, event, text
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from inbox import (
    Action,
    AsyncInbox,
    AsyncListener,
    AsyncStatusInbox,
    Claim,
    Inbox,
    Outcome,
    RedisStore,
    SqlStore,
    Status,
    StatusInbox,
    Verdict,
    is_transient,
)
from inbox.errors import StoreUnreachable
from outbox import DirectDelivery, Envelope, Refused, Unavailable
from tests.servers.redis import LocalRedis
from tests.support import accounts, outages
from tests.support.database import Database
from tests.support.listeners import in_threads
from tests.support.outages import Trouble
from tests.support.status_async import in_loop
from tests.support.status_stores import CONSUMER, request, stored

ACK, RETRY, DEAD_LETTER = Action.ACK, Action.RETRY, Action.DEAD_LETTER
LAST: dict[str, Any] = {"failures": lambda _: 3, "max_attempts": 4}
"""Options of a listener for which one more failure is the end of a message."""

Handler = Callable[[str], Outcome]
Mode = Callable[[Engine], Handler]


def exactly_once(engine: Engine) -> Handler:
    """A handler of the exactly-once path."""
    return Inbox("billing").handler(engine, key=str, attempts=2)(lambda connection, message: None)


def with_claims(engine: Engine) -> Handler:
    """A handler of status-table mode, whose messages have one attempt."""
    inbox = StatusInbox("billing", store=SqlStore(engine), max_attempts=1)
    return inbox.handler(key=str)(lambda claim, message: None)


modes = pytest.mark.parametrize("mode", [exactly_once, with_claims])


def deliver(handler: Handler, message: str = "m") -> Action:
    """What the broker is told about one delivery, which is the message's last if it counts."""
    return in_threads([message], handler, **LAST)[0].action


@contextmanager
def limited(database: Database) -> Iterator[tuple[URL, AbstractContextManager[None]]]:
    """Statements end after a moment, and somebody has locked the tables."""
    if database.name not in {"postgresql", "mariadb"}:
        pytest.skip("it has no such limit for statements that write")
    yield outages.impatient(database), outages.locked_tables(database)


@contextmanager
def demoted(database: Database) -> Iterator[tuple[URL, AbstractContextManager[None]]]:
    """The server becomes a replica, and takes no writes."""
    if database.name not in {"mariadb", "mysql"}:
        pytest.skip("PostgreSQL's own code for this has always been a passing one")
    with outages.unprivileged(database) as url:
        yield url, outages.read_only(database)


@modes
@pytest.mark.parametrize("outage", [limited, demoted])
def test_an_outage_of_the_database(migrated: Database, outage: Any, mode: Mode) -> None:
    """While it lasts the message comes again, however often it has failed; afterwards it is taken, and all
    its attempts are left."""
    opened: list[object] = []
    with outage(migrated) as (url, trouble):
        engine = migrated.engine_at(url)
        handler = mode(engine)
        with engine.connect():
            event.listen(engine, "connect", lambda *_: opened.append(1))
        with trouble:
            assert deliver(handler) is RETRY
        assert deliver(handler) is ACK
        assert bool(opened) is (outage is demoted), "connections to a server that was demoted are of no use"
        engine.dispose()


@modes
def test_an_exhausted_pool(migrated: Database, mode: Mode) -> None:
    """A connection that could not be had is no failure of the message that waited for it."""
    engine = migrated.engine(pool_size=1, max_overflow=0, pool_timeout=0.1)
    handler = mode(engine)
    with engine.connect():
        assert deliver(handler) is RETRY
    assert deliver(handler) is ACK


@in_loop
async def test_an_exhausted_pool_asynchronously(postgres: Database) -> None:
    """The same in both modes for asynchronous handlers."""
    engine = create_async_engine(postgres.async_url, pool_size=1, max_overflow=0, pool_timeout=0.1)
    status_inbox = AsyncStatusInbox("calls", store=SqlStore(engine), max_attempts=1)

    @AsyncInbox("billing").handler(engine, key=str, attempts=2)
    async def once(connection: AsyncConnection, message: str) -> None: ...

    @status_inbox.handler(key=str)
    async def with_claims(claim: Any, message: str) -> None: ...

    listener = AsyncListener(**LAST)
    for handler in (once, with_claims):
        async with engine.connect():
            assert (await listener.decide(["m"], handler))[0].action is RETRY
        assert (await listener.decide(["m"], handler))[0].action is ACK
    await engine.dispose()


def test_an_outage_under_direct_delivery(migrated: Database) -> None:
    """The relay is told that the topic's messages cannot be taken now, and refuses none."""
    engine = migrated.engine(pool_size=1, max_overflow=0, pool_timeout=0.1)
    envelope = Envelope("m", "orders", "k", b"", "text/plain", {}, 1, datetime.now(UTC))
    handler = Inbox("billing").handler(engine, key=lambda message: message.id, attempts=1)(lambda *_: 1 / 0)
    delivery = DirectDelivery({"orders": handler}, max_attempts=1)
    with engine.connect():
        (outcome,) = delivery.send([envelope])
    assert type(outcome) is Unavailable
    (outcome,) = delivery.send([envelope])
    assert type(outcome) is Refused


@pytest.fixture
def client(private_redis: LocalRedis) -> Iterator["redis.Redis"]:
    """A client of a Redis of the test's own."""
    with redis.Redis.from_url(private_redis.url) as client:
        yield client


troubles = pytest.mark.parametrize("trouble", [outages.full, outages.alone, outages.unsaved, outages.busy])


@troubles
def test_a_redis_that_takes_no_writes(client: "redis.Redis", trouble: Trouble) -> None:
    """Its answer is StoreUnreachable with the reason: for the claim, for a step and for the end of a handler.
    The message comes again, its attempts are left, and what was finished is not run again."""
    store = RedisStore(client)
    inbox = StatusInbox(CONSUMER, store=store, lease=2, max_attempts=1)
    runs: list[str] = []

    def body(claim: Claim, message: str) -> None:
        claim.step("first", lambda: runs.append("first"))
        with trouble(client):
            claim.step("second", lambda: runs.append("second"))

    handler = inbox.handler(key=str)(body)
    with trouble(client):
        (decision,) = in_threads(["m"], handler, **LAST)
        with pytest.raises(StoreUnreachable, match=r"OutOfMemoryError|NOREPLICAS|MISCONF|BUSY"):
            store.claim(request())
    assert decision.action is RETRY
    assert deliver(handler) is RETRY
    record = store.find(CONSUMER, "m")
    assert record is not None
    assert (record.status, record.attempts_started) == (Status.FAILED, 0)
    assert deliver(inbox.handler(key=str)(lambda claim, message: claim.step("second", lambda: 2))) is ACK
    assert runs == ["first", "second"]


@troubles
@pytest.mark.parametrize("fails", [True, False], ids=["failed", "succeeded"])
def test_an_end_that_a_redis_does_not_take(client: "redis.Redis", trouble: Trouble, *, fails: bool) -> None:
    """It is recorded with the next claim, of whatever message: one that had succeeded is done and does not
    run again, one that had failed has its error, and both have the attempts that they had."""
    inbox = StatusInbox(CONSUMER, store=RedisStore(client), max_attempts=2)
    runs: list[str] = []
    with ExitStack() as lasting:

        @inbox.handler(key=str)
        def handler(claim: Claim, message: str) -> None:
            runs.append(message)
            if message == "m" and len(runs) == 1:
                lasting.enter_context(trouble(client))
                if fails:
                    raise ValueError("the first time")

        assert deliver(handler) is RETRY
    assert deliver(handler, "other") is ACK
    record = stored(inbox.store, "m")
    assert record.status is (Status.FAILED if fails else Status.CONSUMED)
    assert (record.attempts_started, record.attempts_finished) == (1, 1)
    assert deliver(handler) is ACK
    assert runs == (["m", "other", "m"] if fails else ["m", "other"])


def test_an_end_that_a_database_does_not_take(postgres: Database) -> None:
    """The same for SqlStore, where the message itself comes again."""
    engine = postgres.engine_at(outages.impatient(postgres))
    inbox = StatusInbox(CONSUMER, store=SqlStore(engine), max_attempts=1)
    runs: list[str] = []
    with ExitStack() as lasting:

        @inbox.handler(key=str)
        def handler(claim: Claim, message: str) -> None:
            runs.append(message)
            lasting.enter_context(outages.locked_tables(postgres))

        assert deliver(handler) is RETRY
    assert deliver(handler) is ACK
    assert runs == ["m"]
    engine.dispose()


@in_loop
async def test_a_full_redis_asynchronously(private_redis: LocalRedis) -> None:
    """The same through the asynchronous client."""
    with redis.Redis.from_url(private_redis.url) as admin:
        async with redis.asyncio.Redis.from_url(private_redis.url) as client:
            inbox = AsyncStatusInbox(CONSUMER, store=RedisStore(client))
            with outages.full(admin), pytest.raises(StoreUnreachable):
                async with inbox.claim("m"):
                    pytest.fail("claimed")


def test_a_step_that_could_not_be_recorded(postgres: Database) -> None:
    """The error of the store passes through the handler and counts no attempt: the message has one, and
    succeeds with it at the next delivery."""
    engine = postgres.engine_at(outages.impatient(postgres))
    inbox = StatusInbox(CONSUMER, store=SqlStore(engine), max_attempts=1)

    def body(claim: Claim, message: str) -> None:
        with outages.locked_tables(postgres):
            claim.step("only", lambda: 1)

    assert deliver(inbox.handler(key=str)(body)) is RETRY
    assert stored(inbox.store, "m").attempts_started == 0
    assert deliver(inbox.handler(key=str)(lambda claim, message: claim.step("only", lambda: 1))) is ACK
    engine.dispose()


def test_a_transaction_of_a_step_that_could_not_begin(postgres: Database) -> None:
    """The same for `transact`, whose source has no connection left."""
    source = postgres.engine(pool_size=1, max_overflow=0, pool_timeout=0.1)
    inbox = StatusInbox(CONSUMER, store=SqlStore(postgres.engine()), max_attempts=1)

    def body(claim: Claim, message: str) -> None:
        claim.transact("only", lambda connection: None, source=source)

    handler = inbox.handler(key=str)(body)
    with source.connect():
        assert deliver(handler) is RETRY
    assert deliver(handler) is ACK


def test_a_body_that_meets_with_the_servers_limit(postgres: Database) -> None:
    """A body whose own statement takes too long would do so each time: it runs once a delivery, and the last
    failure is the end of the message."""
    engine = postgres.engine_at(outages.impatient(postgres))
    runs = []

    @Inbox("billing").handler(engine, key=str)
    def handler(connection: Connection, message: str) -> None:
        runs.append(message)
        connection.execute(text("SELECT pg_sleep(10)"))

    assert deliver(handler) is DEAD_LETTER
    assert runs == ["m"]
    engine.dispose()


def _deferring(database: Database) -> Engine:
    """An engine on a table whose rows' parents are looked for at COMMIT."""
    engine = database.engine()
    if database.name == "sqlite":
        event.listen(engine, "connect", lambda driver, _: driver.execute("PRAGMA foreign_keys = ON"))
    parent = "parent INTEGER REFERENCES parent (id) DEFERRABLE INITIALLY DEFERRED"
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE parent (id INTEGER PRIMARY KEY)"))
        connection.execute(text(f"CREATE TABLE child (id INTEGER PRIMARY KEY, {parent})"))
    return engine


def violate(handle: Connection | Session, message: str) -> None:
    """A body that succeeds, and leaves COMMIT to fail."""
    handle.execute(text("INSERT INTO child (id, parent) VALUES (1, 7)"))


def test_what_the_body_has_deferred(migrated: Database) -> None:
    """A constraint that is checked at COMMIT is the body's: the last failure is the end of the message, which
    would fail for ever otherwise."""
    if migrated.name not in {"postgresql", "sqlite"}:
        pytest.skip("it has no deferred constraints")
    engine = _deferring(migrated)
    for source in (engine, sessionmaker(engine)):
        handler = Inbox("billing").handler(source, key=str)(violate)
        (decision,) = in_threads(["m"], handler, failures=lambda _: 2, max_attempts=4)
        assert decision.outcome is not None
        assert isinstance(decision.outcome.error, IntegrityError)
        assert decision.outcome.is_failure
        assert deliver(handler) is DEAD_LETTER


def test_what_a_session_writes_last(postgres: Database) -> None:
    """A flush before COMMIT writes the body's own objects."""
    engine = postgres.engine()
    accounts.make(engine)

    @Inbox("billing").handler(sessionmaker(engine), key=str)
    def handler(session: Session, message: str) -> None:
        session.add(accounts.Account(name="cash", total=1))

    assert deliver(handler) is DEAD_LETTER


def test_an_error_that_a_body_hands_on(postgres: Database) -> None:
    """What another inbox's own statements raise inside a body is nobody's fault, also where the body catches
    it and raises it again; what the body makes of it is the body's."""
    engine = postgres.engine(pool_size=1, max_overflow=0, pool_timeout=0.1)
    outer, inner = Inbox("outer"), Inbox("inner")

    def handler_of(makes: Callable[[Exception], Exception]) -> Handler:
        @outer.handler(postgres.engine(), key=str, attempts=1)
        def handler(connection: Connection, message: str) -> None:
            try:
                with engine.connect(), inner.transaction(engine, message):
                    pytest.fail("it had no connection")
            except PoolTimeoutError as error:
                raise makes(error) from None

        return handler

    assert deliver(handler_of(lambda error: error)) is RETRY
    assert deliver(handler_of(lambda error: ExceptionGroup("all", [error]))) is RETRY
    assert deliver(handler_of(lambda error: ExceptionGroup("one", [error, KeyError()]))) is DEAD_LETTER
    assert deliver(handler_of(lambda error: KeyError(str(error)))) is DEAD_LETTER


def test_a_transaction_that_the_body_has_broken(postgres: Database) -> None:
    """A statement of the inbox that is refused because one of the body's had failed is the body's fault."""

    @Inbox("outer").handler(postgres.engine(), key=str, attempts=1)
    def handler(connection: Connection, message: str) -> None:
        try:
            connection.execute(text("SELECT 1/0"))
        except Exception:  # noqa: BLE001 - a body that swallows errors
            Inbox("inner").accept(connection, message)

    assert deliver(handler) is DEAD_LETTER


CODES = {
    "postgresql": ("57014", "53200", "53100", "53400", "58030", "55006", "26000", "42P05"),
    "mysql": (1969, 3024, 1317, 1290, 1836, 1047, 3101, 3572),
}


class Said(Exception):
    """A driver's error with the server's code; PyMySQL has a less precise SQLSTATE with each number."""

    def __init__(self, code: str | int) -> None:
        super().__init__(code)
        self.sqlstate = code if isinstance(code, str) else "HY000"


@pytest.mark.parametrize("code", [code for codes in CODES.values() for code in codes])
def test_what_may_succeed_when_it_is_tried_again(code: str | int) -> None:
    """Limits, full disks and servers that change their roles pass; a body that meets with them has failed."""
    error = OperationalError("INSERT", {}, Said(code))
    assert is_transient(error)
    assert is_transient(ExceptionGroup("all", [error, PoolTimeoutError()]))
    assert not is_transient(ExceptionGroup("one", [error, ValueError()]))
    assert Outcome(Verdict.NEW, error=error).is_failure
