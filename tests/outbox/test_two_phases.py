"""Two-phase commits: messages are written before the transaction is prepared."""

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, create_engine, event
from sqlalchemy.orm import Session

from examples.embedded_postgres import EmbeddedPostgres
from outbox import Outbox
from tests.support import accounts
from tests.support.database import Database, make_tables
from tests.support.on_servers import WITH_WRITERS, spread
from tests.support.published import TOPIC, texts

pytestmark = pytest.mark.mysql


@pytest.fixture
def engine(migrated: Database) -> Iterator[Engine]:
    """A database that allows prepared transactions, with a business table, and a pool of one connection."""
    if migrated.name != "postgresql":
        accounts.make(migrated.engine())
        yield migrated.engine(pool_size=1, max_overflow=0)
        return
    with EmbeddedPostgres({"max_prepared_transactions": "4"}) as server:  # the default is 0
        make_tables(server.url)
        engine = accounts.make(create_engine(server.url, pool_size=1, max_overflow=0))
        yield engine
        engine.dispose()


@pytest.fixture
def observer(engine: Engine) -> Iterator[Engine]:
    """The same database, with connections of its own."""
    observer = create_engine(engine.url)
    yield observer
    observer.dispose()


def work(session: Session) -> None:
    """Write a business row and publish its message."""
    accounts.add(session)
    Outbox().publish(session, TOPIC, "told", key="k")


@spread("end", ["commit", "rollback", "rollback when prepared"], where=WITH_WRITERS)
def test_its_end_decides(engine: Engine, observer: Engine, end: str) -> None:
    """Messages are committed or rolled back with the transaction, also after it was prepared."""
    with Session(engine, twophase=True) as session:
        work(session)
        if end == "rollback":
            session.rollback()
        else:
            session.prepare()
            assert texts(observer) == []
            session.commit() if end == "commit" else session.rollback()
    is_committed = end == "commit"
    assert accounts.total(observer) == is_committed
    assert texts(observer) == ["told"] * is_committed


@spread("prepares", [True, False], where=WITH_WRITERS)
def test_messages_cannot_be_written(engine: Engine, observer: Engine, prepares: bool) -> None:
    """If the messages cannot be written, the business rows are not committed, neither now nor by the next
    user of the connection."""

    @event.listens_for(engine, "before_cursor_execute")
    def fail(_: object, __: object, statement: str, *___: object) -> None:
        if "INSERT INTO outbox_message" in statement:
            raise ZeroDivisionError

    with Session(engine, twophase=True) as session:
        work(session)
        transaction = session.connection().get_transaction()
        assert transaction is not None
        end = session.prepare if prepares else transaction.commit
        with pytest.raises(ZeroDivisionError):
            end()
    with engine.begin() as connection:
        accounts.add(connection, amount=100)
    assert accounts.total(observer) == 100
    assert texts(observer) == []
