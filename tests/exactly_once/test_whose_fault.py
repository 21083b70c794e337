"""A message is blamed only for errors that came out of its handler's body."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from itertools import product
from typing import Any, NoReturn

import pytest
import redis
from sqlalchemy import URL, Connection, Engine, NullPool, create_engine, event, text
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError
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
    Listener,
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
from tests.support.cases import case
from tests.support.database import Database
from tests.support.listeners import in_threads
from tests.support.on_servers import on
from tests.support.outages import Trouble
from tests.support.status_mode.asynchronous import in_loop
from tests.support.status_mode.stores import CONSUMER, request, stored

ACK, RETRY, DEAD_LETTER = Action.ACK, Action.RETRY, Action.DEAD_LETTER
LAST: dict[str, Any] = {"failures": lambda _: 3, "max_attempts": 4}
"""Options of a listener for which one more failure is the end of a message."""

Handler = Callable[[str], Outcome]
Mode = Callable[[Engine], Handler]


def exactly_once(engine: Engine) -> Handler:
    """A handler of the exactly-once path."""
    return Inbox("billing").handler(engine, key=str, attempts=2)(lambda connection, message: None)


def with_claims(engine: Engine) -> Handler:
    """A handler of status-table mode that allows one attempt for each message."""
    inbox = StatusInbox("billing", store=SqlStore(engine), max_attempts=1)
    return inbox.handler(key=str)(lambda claim, message: None)


modes = pytest.mark.parametrize("mode", [exactly_once, with_claims])


def deliver(handler: Handler, message: str = "m") -> Action:
    """The broker action after one delivery, which is the message's last one if it counts as a failure."""
    return in_threads([message], handler, **LAST)[0].action


@contextmanager
def limited(database: Database) -> Iterator[tuple[URL, AbstractContextManager[None]]]:
    """Statements time out soon, and another session has locked the tables."""
    yield outages.impatient(database), outages.locked_tables(database)


@contextmanager
def demoted(database: Database) -> Iterator[tuple[URL, AbstractContextManager[None]]]:
    """The server becomes a replica and rejects writes."""
    with outages.unprivileged(database) as url:
        yield url, outages.read_only(database)


@modes
@pytest.mark.parametrize(
    ("server", "outage"),
    [
        *product(["postgresql", "mariadb"], [limited]),  # MySQL has no such limit for statements that write
        *product(["mariadb", "mysql"], [demoted]),  # a PostgreSQL that is demoted breaks its connections
    ],
    indirect=["server"],
)
def test_an_outage_of_the_database(migrated: Database, outage: Any, mode: Mode) -> None:
    """During an outage the message is delivered again, however often it fails; afterwards it is taken, and no
    attempt was counted."""
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
@pytest.mark.parametrize(
    ("trouble", "relief"),
    [("query_only = 1", "query_only = 0"), ("max_page_count = 1", "max_page_count = 1000000")],
)
def test_a_file_that_takes_no_writes(sqlite: Database, trouble: str, relief: str, mode: Mode) -> None:
    """The same while an SQLite file is read-only, or its disk is full, though some rows may still fit in."""
    engine = sqlite.engine()
    handler = mode(engine)
    setting = trouble
    event.listen(engine, "checkout", lambda connection, *_: connection.execute(f"PRAGMA {setting}"))
    message, action = next(
        (message, action)
        for message in map(str, range(1000))
        if (action := deliver(handler, message)) is not ACK
    )
    assert action is RETRY
    setting = relief
    assert deliver(handler, message) is ACK


OTHER = Inbox("other")


def accept_in_savepoint(session: Any, message: str) -> None:
    """The savepoint is sent right before the message is taken."""
    with session.begin_nested():
        OTHER.accept(session, message)


def handle_the_end(handle: Any, message: str) -> None:
    """The body handles the error with which it meets the end of its transaction."""
    with suppress(DBAPIError):
        handle.execute(text("SELECT 1"))


def go_on_after_the_end(handle: Any, message: str) -> None:
    """The same, and then it uses the connection."""
    handle_the_end(handle, message)
    handle.execute(text("SELECT 1"))


@pytest.mark.parametrize(
    ("limit", "source", "meet"),
    [
        ("idle_in_transaction_session_timeout", Session, lambda *_: None),
        ("transaction_timeout", Connection, lambda *_: None),
        ("transaction_timeout", Session, lambda session, _: session.execute(text("SELECT 1"))),
        ("idle_in_transaction_session_timeout", Connection, OTHER.accept),
        ("transaction_timeout", Connection, OTHER.take),
        ("transaction_timeout", Connection, lambda connection, key: OTHER.accept_many(connection, [key])),
        ("idle_in_transaction_session_timeout", Session, accept_in_savepoint),
        ("transaction_timeout", Connection, handle_the_end),
        ("idle_in_transaction_session_timeout", Session, go_on_after_the_end),
    ],
)
def test_a_body_that_takes_too_long(postgres: Database, limit: str, source: Any, meet: Any) -> None:
    """A body that outlasts the server's limit on transactions counts, whether the COMMIT meets the end of the
    transaction or a statement of the body's does, or one of another inbox on its connection, also if the body
    handles that error. It runs once for each delivery: it would be slow again."""
    engine = accounts.make(postgres.engine())
    maker: Any = engine if source is Connection else sessionmaker(engine)
    runs: list[str] = []

    def slow(handle: Any, message: str) -> None:
        runs.append(message)
        handle.execute(text(f"SET LOCAL {limit} = '100ms'"))
        time.sleep(0.3)
        meet(handle, message)

    book = Inbox("billing").handler(maker, key=str)(slow)
    store = SqlStore(engine)

    @StatusInbox(CONSUMER, store=store, max_attempts=1).handler(key=str)
    def claimed(claim: Claim, message: str) -> None:
        claim.transact("book", lambda handle: slow(handle, message), source=maker)

    (decision,) = in_threads(["m"], book)
    assert decision.outcome is not None
    assert decision.outcome.is_failure
    assert "timeout" in decision.reason
    assert runs == ["m"]
    assert deliver(book) is DEAD_LETTER
    assert deliver(claimed) is DEAD_LETTER
    assert stored(store, "m").status is Status.DEAD


def test_a_wait_of_the_inbox_that_takes_too_long(postgres: Database) -> None:
    """If the server ends the transaction while the inbox waits for another one that has the key, the body has
    not begun, and the message has not failed. So it is in a transaction of the caller's that begins with the
    message."""
    engine, runs = postgres.engine(), list[str]()
    inbox = Inbox("billing", wait=10)

    @event.listens_for(engine, "begin")
    def limit(connection: Connection) -> None:
        connection.exec_driver_sql("SET LOCAL transaction_timeout = '200ms'")

    @inbox.handler(engine, key=str, attempts=1)
    def book(connection: Connection, message: str) -> None:
        runs.append(message)

    limited = postgres.engine(connect_args={"options": "-c transaction_timeout=200"})

    def accept(message: str) -> Outcome:
        with limited.begin() as connection:
            return Outcome(inbox.accept(connection, message))

    with postgres.engine().connect() as other:
        inbox.accept(other, "m")
        assert deliver(book) is RETRY
        assert runs == []
        assert deliver(accept) is RETRY
        other.rollback()
    assert deliver(book) is ACK
    assert deliver(accept) is ACK


def test_a_file_that_takes_no_writes_is_transient(sqlite: Database) -> None:
    """As an unreachable store, in an error of the library's own, and to an application that asks."""
    engine = sqlite.engine()
    event.listen(engine, "connect", lambda connection, _: connection.execute("PRAGMA query_only = 1"))
    with pytest.raises(OperationalError, match="readonly") as error, engine.begin() as connection:
        Inbox("billing").accept(connection, "m")
    assert is_transient(error.value)
    inbox = StatusInbox("billing", store=SqlStore(engine))
    with pytest.raises(StoreUnreachable, match="readonly"), inbox.claim("m"):
        pass


@modes
def test_an_exhausted_pool(sqlite: Database, mode: Mode) -> None:
    """If the pool has no free connection, this does not count as a failure of the message."""
    engine = sqlite.engine(pool_size=1, max_overflow=0, pool_timeout=0.1)
    handler = mode(engine)
    with engine.connect():
        assert deliver(handler) is RETRY
    assert deliver(handler) is ACK


@in_loop
async def test_an_exhausted_pool_asynchronously(postgres: Database) -> None:
    """Async handlers of both modes: an exhausted pool does not count as a failure of the message."""
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


def test_an_outage_under_direct_delivery(sqlite: Database) -> None:
    """In direct delivery an outage is reported to the relay as Unavailable, and no message is refused."""
    engine = sqlite.engine(pool_size=1, max_overflow=0, pool_timeout=0.1)
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
    """A client of the test's private Redis."""
    with redis.Redis.from_url(private_redis.url) as client:
        yield client


@pytest.mark.parametrize("trouble", [outages.full, outages.alone, outages.unsaved, outages.busy])
def test_a_redis_that_takes_no_writes(client: "redis.Redis", trouble: Trouble) -> None:
    """A Redis that rejects writes raises StoreUnreachable with the reason, for the claim, for a step and for
    the end of a handler. The message is delivered again with all its attempts left, and finished steps are
    not repeated."""
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


@pytest.mark.parametrize(
    ("trouble", "fails"),
    [
        (outages.full, True),
        (outages.full, False),
        (outages.alone, False),
        (outages.unsaved, True),
        (outages.busy, False),
    ],
)
def test_an_end_that_a_redis_does_not_take(client: "redis.Redis", trouble: Trouble, *, fails: bool) -> None:
    """If Redis cannot record the end of a run, it is recorded with the next claim of any message: a success
    does not run again, a failure is FAILED and runs again, and each counts as exactly one attempt."""
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
    """If SqlStore cannot record the end of a run, the message is delivered again, the end is recorded then,
    and the body does not run again."""
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
    """Async: a full Redis raises StoreUnreachable."""
    with redis.Redis.from_url(private_redis.url) as admin:
        async with redis.asyncio.Redis.from_url(private_redis.url) as client:
            inbox = AsyncStatusInbox(CONSUMER, store=RedisStore(client))
            with outages.full(admin), pytest.raises(StoreUnreachable):
                async with inbox.claim("m"):
                    pytest.fail("claimed")


def test_a_step_that_could_not_be_recorded(postgres: Database) -> None:
    """The store's error passes through the handler and counts no attempt: a message with one attempt succeeds
    at the next delivery."""
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
    """If `transact` gets no connection from its source, no attempt is counted."""
    source = postgres.engine(pool_size=1, max_overflow=0, pool_timeout=0.1)
    inbox = StatusInbox(CONSUMER, store=SqlStore(postgres.engine()), max_attempts=1)

    def body(claim: Claim, message: str) -> None:
        claim.transact("only", lambda connection: None, source=source)

    handler = inbox.handler(key=str)(body)
    with source.connect():
        assert deliver(handler) is RETRY
    assert deliver(handler) is ACK


def test_a_body_that_meets_with_the_servers_limit(postgres: Database) -> None:
    """If the body's own statement exceeds the server's limit, it would do so every time: it runs once per
    delivery, and the last failure makes the message a dead letter."""
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
    """An engine for a table with a foreign key that is checked at COMMIT."""
    engine = database.engine()
    if database.name == "sqlite":
        event.listen(engine, "connect", lambda driver, _: driver.execute("PRAGMA foreign_keys = ON"))
    parent = "parent INTEGER REFERENCES parent (id) DEFERRABLE INITIALLY DEFERRED"
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE parent (id INTEGER PRIMARY KEY)"))
        connection.execute(text(f"CREATE TABLE child (id INTEGER PRIMARY KEY, {parent})"))
    return engine


def violate(handle: Connection | Session, message: str) -> None:
    """A body that succeeds, and makes COMMIT fail."""
    handle.execute(text("INSERT INTO child (id, parent) VALUES (1, 7)"))


@on("postgresql", "sqlite")  # the others have no deferred constraints
def test_what_the_body_has_deferred(migrated: Database) -> None:
    """A violation of a constraint that is checked at COMMIT counts against the body: otherwise the message
    would fail for ever. The last failure makes it a dead letter."""
    engine = _deferring(migrated)
    for source in (engine, sessionmaker(engine)):
        handler = Inbox("billing").handler(source, key=str)(violate)
        (decision,) = in_threads(["m"], handler, failures=lambda _: 2, max_attempts=4)
        assert decision.outcome is not None
        assert isinstance(decision.outcome.error, IntegrityError)
        assert decision.outcome.is_failure
        assert deliver(handler) is DEAD_LETTER


def test_what_a_session_writes_last(postgres: Database) -> None:
    """The flush before COMMIT writes the body's objects, so its error counts against the body."""
    engine = accounts.make(postgres.engine())

    @Inbox("billing").handler(sessionmaker(engine), key=str)
    def handler(session: Session, message: str) -> None:
        session.add(accounts.Account(name="cash", total=1))

    assert deliver(handler) is DEAD_LETTER


def test_an_error_that_a_body_hands_on(postgres: Database) -> None:
    """An error of another inbox's own statements inside the body counts against no message, even if the
    body catches and re-raises it; if the body raises a different error instead, that one counts against
    the body."""
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
    """If a statement of the inbox fails because an earlier statement of the body had failed, the error counts
    against the body."""

    @Inbox("outer").handler(postgres.engine(), key=str, attempts=1)
    def handler(connection: Connection, message: str) -> None:
        try:
            connection.execute(text("SELECT 1/0"))
        except Exception:  # noqa: BLE001 - a body that swallows errors
            Inbox("inner").accept(connection, message)

    assert deliver(handler) is DEAD_LETTER


CODES = (
    *("57014", "53200", "53100", "53400", "58030", "55006", "26000", "42P05"),  # PostgreSQL
    *(1969, 3024, 1317, 3572),  # MariaDB and MySQL
)
PASSING = (1047, 1180, 1213, 1205, 1290, 1792, 1836, 3101, "25006")
"""The server is no primary any more, or another one has committed first."""


class Said(Exception):
    """A driver's error with the server's code; PyMySQL's errors also have a less precise SQLSTATE."""

    def __init__(self, code: str | int) -> None:
        super().__init__(code)
        self.sqlstate = code if isinstance(code, str) else "HY000"


def test_what_may_succeed_when_it_is_tried_again() -> None:
    """Errors about limits and full disks are transient; if one comes out of the body, it still counts as the
    body's failure. Those of a server that is no primary never do."""
    for code in CODES:
        error = OperationalError("INSERT", {}, Said(code))
        with case(code):
            assert is_transient(error)
            assert is_transient(ExceptionGroup("all", [error, PoolTimeoutError()]))
            assert not is_transient(ExceptionGroup("one", [error, ValueError()]))
            assert Outcome(Verdict.NEW, error=error).is_failure
    for code in PASSING:
        error = OperationalError("INSERT", {}, Said(code))
        with case(code):
            assert is_transient(error)
            assert not Outcome(Verdict.NEW, error=error).is_failure


def through_the_body(engine: Engine) -> Callable[[str], object]:
    """The body handles an error of its Session, which ends the transaction."""

    @Inbox("billing").handler(sessionmaker(engine), key=str)
    def book(session: Session, message: str) -> None:
        session.add_all([accounts.Account(name="alice"), accounts.Account(name="alice")])
        with suppress(IntegrityError):
            session.flush()
        Inbox("audit").accept(session, message)

    return book


def through_the_source(engine: Engine) -> Callable[[str], object]:
    """The application's function knows no engine for this message."""
    return Inbox("billing").handler(lambda: {"a tenant": engine}["unknown"], key=str)(
        lambda connection, message: None
    )


def through_a_hook(engine: Engine) -> Callable[[str], object]:
    """A listener to the Session's events knows no tenant for this message."""
    maker = sessionmaker(engine)
    event.listen(maker, "after_begin", lambda *_: {"a tenant": engine}["unknown"])
    return Inbox("billing").handler(maker, key=str)(lambda session, message: None)


@pytest.mark.parametrize("handler", [through_the_body, through_the_source, through_a_hook])
def test_what_the_applications_own_code_raises(sqlite: Database, handler: Any) -> None:
    """It counts against the message, also if a statement or a call of the inbox meets it: otherwise the
    message would be delivered without end."""
    engine = accounts.make(sqlite.engine())
    (decision,) = Listener(**LAST).decide(["a"], handler(engine))
    assert decision.action is DEAD_LETTER


def test_a_text_that_cannot_be_read(sqlite: Database) -> None:
    """SQLite's driver says it without a code. It comes again with each delivery, so it counts."""
    engine = sqlite.engine()

    @Inbox("billing").handler(engine, key=str)
    def read(connection: Connection, message: str) -> None:
        connection.execute(text("SELECT CAST(x'FF' AS TEXT)")).all()

    (decision,) = Listener(**LAST).decide(["a"], read)
    assert decision.action is DEAD_LETTER


class Throttled(Exception):
    """A service's own class of error."""


def throttled() -> NoReturn:
    raise Throttled


def wrapped() -> NoReturn:
    """The reason is lost in the text."""
    try:
        throttled()
    except Throttled:
        raise LookupError("unknown tenant") from None


def away() -> NoReturn:
    raise redis.ConnectionError


def refused() -> NoReturn:
    raise ConnectionRefusedError


@pytest.mark.parametrize("trouble", [throttled, wrapped, away, refused])
def test_an_outage_that_the_applications_own_code_meets(sqlite: Database, trouble: Any) -> None:
    """What may be an outage of whatever a hook or a source asks makes no healthy message a dead letter."""
    engine = sqlite.engine()
    maker = sessionmaker(engine)
    event.listen(maker, "after_begin", lambda *_: trouble())
    for source in (trouble, maker):
        handler = Inbox("billing").handler(source, key=str)(lambda handle, message: None)
        (decision,) = Listener(**LAST).decide(["a"], handler)
        assert (decision.action, decision.outcome and decision.outcome.is_failure) == (RETRY, False)


def kill(engine: Engine) -> None:
    """As a server that restarts."""
    with engine.connect() as other:
        other.execute(
            text(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        )


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_a_lost_connection_that_the_driver_itself_tells(postgres: Database, driver: str) -> None:
    """It is no failure, whether a hook uses the driver's cursor, as for row level security, or the body
    does."""
    engine = create_engine(postgres.url.set(drivername=f"postgresql+{driver}"), pool_size=1)

    def ask(connection: Connection) -> None:
        connection.connection.cursor().execute("SELECT set_config('app.tenant', 'x', true)")

    def body(connection: Connection, message: str) -> None:
        if message == "body":
            kill(postgres.engine())
            ask(connection)

    book = Inbox("billing").handler(engine, key=str, attempts=1)(body)
    event.listen(engine, "begin", ask)
    for message in ("first", "hook", "body"):
        if message == "hook":
            kill(postgres.engine())
        (decision,) = Listener(**LAST).decide([message], book)
        assert decision.action is (RETRY if message == "body" else ACK)  # the hook's is tried again at once
        assert decision.outcome is not None
        assert not decision.outcome.is_failure
    engine.dispose()


def test_a_token_that_cannot_be_fetched(sqlite: Database) -> None:
    """It is an outage: an error of the application's code that runs when the pool connects counts against no
    message."""
    engine = sqlite.engine(poolclass=NullPool)
    handler = exactly_once(engine)
    handler("a")
    event.listen(engine, "do_connect", lambda *_: {"other": "token"}["token"])
    (decision,) = Listener(**LAST).decide(["b"], handler)
    assert (decision.action, decision.outcome and decision.outcome.is_failure) == (RETRY, False)
