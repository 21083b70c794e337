"""Published messages, as a relay sees them whose publisher records everything."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, event, select
from sqlalchemy.orm import Session

from outbox import Envelope, Outbox, Relay, schema
from tests.support.database import Database
from tests.support.outbox_publishers import Recorder

TOPIC = "orders"

Handle = Connection | Session
Way = Callable[[Engine], AbstractContextManager[Handle]]


def relayed(engine: Engine, **options: Any) -> list[Envelope]:
    """The messages that a relay sends now."""
    recorder = Recorder()
    Relay(engine, recorder, **options).run_once()
    return recorder.accepted


def texts(engine: Engine, **options: Any) -> list[str]:
    """The payloads of the messages that a relay sends now."""
    return [message.payload.decode() for message in relayed(engine, **options)]


def waiting(engine: Engine, schema_name: str | None = None) -> list[Any]:
    """The committed rows, in the order of their sequence numbers."""
    message = schema.tables(schema_name).message
    with engine.connect() as connection:
        return list(connection.execute(select(message).order_by(message.c.sequence)))


def beginning_early(database: Database) -> Engine:
    """An engine that may use savepoints: on SQLite it sends BEGIN itself, as SQLAlchemy's manual
    recommends."""
    engine = database.engine()
    if database.name == "sqlite":

        @event.listens_for(engine, "connect")
        def leave_begin_to_us(driver: Any, _: object) -> None:
            driver.isolation_level = None

        @event.listens_for(engine, "begin")
        def begin(connection: Connection) -> None:
            connection.exec_driver_sql("BEGIN")

    return engine


@contextmanager
def in_connection(engine: Engine) -> Iterator[Handle]:
    """A transaction on a Connection."""
    with engine.begin() as connection:
        yield connection


@contextmanager
def in_session(engine: Engine) -> Iterator[Handle]:
    """A transaction in a Session."""
    with Session(engine) as session, session.begin():
        yield session


@contextmanager
def in_session_on_connection(engine: Engine) -> Iterator[Handle]:
    """A Session that joins the transaction of a Connection, which commits after it."""
    with engine.begin() as connection, Session(connection) as session:
        yield session
        session.commit()


@contextmanager
def in_session_with_savepoint(engine: Engine) -> Iterator[Handle]:
    """The same with a savepoint of the Session, as test suites do it."""
    with (
        engine.begin() as connection,
        Session(connection, join_transaction_mode="create_savepoint") as session,
    ):
        yield session
        session.commit()


WAYS = {
    "connection": in_connection,
    "session": in_session,
    "session on a connection": in_session_on_connection,
    "session with a savepoint": in_session_with_savepoint,
}
"""Transactions of the caller's: the block commits unless it raises."""


def break_off(way: Way, engine: Engine, work: Callable[[Handle], object]) -> None:
    """Run a function in a transaction that then raises ZeroDivisionError."""
    with way(engine) as handle:
        work(handle)
        raise ZeroDivisionError


def publish(session: Session, payload: str) -> None:
    """Publish a message with the one key of these tests, so that the order matters."""
    Outbox().publish(session, TOPIC, payload, key="k")
