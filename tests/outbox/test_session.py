"""Publishing on an ORM Session: messages are kept in memory and written last."""

from itertools import product
from typing import Any, Literal, get_args

import pytest
from sqlalchemy import Engine, event
from sqlalchemy.exc import (
    IntegrityError,
    PendingRollbackError,
)
from sqlalchemy.orm import Session, sessionmaker

from outbox import Outbox
from tests.support import accounts
from tests.support.accounts import Account
from tests.support.on_servers import on, spread
from tests.support.published import TOPIC, publish, texts

JoinMode = Literal["conditional_savepoint", "rollback_only", "control_fully", "create_savepoint"]

# What SQLAlchemy's sessions do depends on no database, except that an error aborts PostgreSQL's transaction.
on_one = on("sqlite")
on_two = on("sqlite", "postgresql")


@on_one
@pytest.mark.parametrize("end", ["close", "reset", "invalidate"])
def test_a_session_goes_on_after_it_was_closed(session: Session, engine: Engine, end: str) -> None:
    """A session that is closed without a commit discards its messages, even if it is used again."""
    publish(session, "never")
    getattr(session, end)()
    session.commit()
    publish(session, "ever")
    session.commit()
    assert texts(engine) == ["ever"]


@on_two
def test_a_session_goes_on_after_a_failure(session: Session, engine: Engine) -> None:
    """A failed flush discards the messages; until the rollback nothing can be published."""
    publish(session, "never")
    session.add(Account(name="cash", total=1))
    with pytest.raises(IntegrityError):
        session.commit()
    with pytest.raises(PendingRollbackError):
        publish(session, "never")
    session.rollback()
    publish(session, "ever")
    session.commit()
    assert texts(engine) == ["ever"]


@on_two
def test_a_savepoint_that_fails(session: Session, engine: Engine) -> None:
    """A savepoint whose flush fails loses its messages; those outside it are kept."""
    publish(session, "1")
    savepoint = session.begin_nested()
    publish(session, "never")
    session.add(Account(name="cash", total=1))
    with pytest.raises(IntegrityError):
        savepoint.commit()
    savepoint.rollback()
    publish(session, "2")
    session.commit()
    assert texts(engine) == ["1", "2"]


@on_one
@pytest.mark.parametrize("end", ["rollback", "commit"])
def test_a_savepoint_that_is_not_the_sessions(session: Session, engine: Engine, end: str) -> None:
    """When a session publishes inside a savepoint that was begun on its connection, the savepoint's end
    decides about those messages, too, and the order is that of publishing."""
    publish(session, "1")
    savepoint = session.connection().begin_nested()
    publish(session, "2")
    getattr(savepoint, end)()
    publish(session, "3")
    session.commit()
    assert texts(engine) == (["1", "2", "3"] if end == "commit" else ["1", "3"])


LISTENED = ["before_commit", "before_flush", "after_flush", "after_flush_postexec"]


@on_one
@pytest.mark.parametrize("place", ["the session", "its sessionmaker"])
@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("moment", LISTENED)
def test_publishing_from_a_listener(engine: Engine, moment: str, place: str, is_first: bool) -> None:
    """Listeners to events of the Session can publish until the end of the transaction; applications often
    collect their messages there."""
    make = sessionmaker(engine)
    with make() as session:
        if not is_first:
            publish(session, "from the body")
        target: Any = session if place == "the session" else make
        event.listen(target, moment, lambda session, *_: publish(session, "from the listener"))
        session.add(Account(name="new", total=1))
        session.commit()
    assert texts(engine) == ([] if is_first else ["from the body"]) + ["from the listener"]


@on_one
@pytest.mark.parametrize("moment", LISTENED)
def test_publishing_from_a_listener_on_a_connection(engine: Engine, moment: str) -> None:
    """The same for a session that joins a Connection's transaction."""
    with engine.begin() as connection, Session(connection) as session:
        event.listen(session, moment, lambda session, *_: publish(session, "from the listener"))
        session.add(Account(name="new", total=1))
        session.commit()
    assert texts(engine) == ["from the listener"]


@spread(
    "inner, outer, mode",
    product(["commit", "rollback"], ["commit", "rollback"], get_args(JoinMode)),
    elsewhere=len(get_args(JoinMode)),
    where=("sqlite", "postgresql"),
)
def test_a_session_that_joins_a_transaction(engine: Engine, inner: str, outer: str, mode: JoinMode) -> None:
    """In every join mode, messages are sent if and only if the business rows written with them are there."""
    with engine.connect() as connection, connection.begin() as transaction:
        with Session(connection, join_transaction_mode=mode) as session:
            session.add(Account(name="new", total=1))
            publish(session, "told")
            getattr(session, inner)()
        if transaction.is_active:
            getattr(transaction, outer)()
    is_there = "new" in accounts.totals(engine)
    assert texts(engine) == ["told"] * is_there
    assert is_there or "rollback" in (inner, outer)


@on_one
def test_a_connection_that_commits_without_asking_its_session(engine: Engine) -> None:
    """A session on a Connection writes its messages immediately, so that a commit by the connection's owner
    includes them."""
    with engine.connect() as connection:
        session = Session(connection)
        session.add(Account(name="new", total=1))
        publish(session, "told")
        connection.commit()
        session.close()
    assert "new" in accounts.totals(engine)
    assert texts(engine) == ["told"]


@on_one
def test_several_outboxes_in_one_session(session: Session, engine: Engine) -> None:
    """Messages that several outboxes publish in one session are sent in the order of publishing."""
    first, second = Outbox(), Outbox(cloudevents="/shop")
    for number, outbox in enumerate([first, second, first, second, second, first]):
        outbox.publish(session, TOPIC, str(number), key="k")
    session.commit()
    assert texts(engine) == [str(number) for number in range(6)]


@on_one
def test_messages_are_written_after_the_business_rows(engine: Engine) -> None:
    """The messages' INSERT is the last statement before the COMMIT, even if they were published first."""
    written: list[str] = []

    @event.listens_for(engine, "before_cursor_execute")
    def note(_: object, __: object, statement: str, *___: object) -> None:
        written.append(statement)

    with Session(engine) as session, session.begin():
        publish(session, "a")
        session.add(Account(name="new", total=1))
    assert "INSERT INTO outbox_message" in written[-1]
    assert [each for each in written if "INSERT INTO account" in each]
