"""Sessions with several databases: messages go to the database that the session writes to, or nothing is
committed."""

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Engine, insert, select, text
from sqlalchemy.exc import DBAPIError, UnboundExecutionError
from sqlalchemy.orm import Session

from inbox import errors as inbox_errors
from outbox import Message, Outbox, schema
from outbox.errors import InvalidOption, UnusableConnection
from tests.support import accounts
from tests.support.accounts import Account
from tests.support.database import Database
from tests.support.on_servers import on, spread
from tests.support.published import TOPIC, texts
from tests.support.several_databases import balance, other, recipe, replica

__all__ = ["other", "replica"]

OUTBOX = Outbox()
POOL_OF_ONE = {"pool_size": 1, "max_overflow": 0}


def test_a_session_that_reads_from_replicas(migrated: Database, replica: Database) -> None:
    """With SQLAlchemy's recipe for replicas, the message is written to the leader, in the transaction of the
    flush; what the session reads from replicas does not matter."""
    leader, followers = migrated.engine(), [replica.engine(), replica.engine()]
    with recipe(leader, followers)() as session:
        assert session.scalar(select(Account.total)) == 0
        OUTBOX.publish(session, TOPIC, "told")
        session.add(Account(name="new", total=1))
        OUTBOX.publish_many(session, [Message(TOPIC, "too")])
        assert session.scalar(select(Account.total)) == 0
        session.commit()
    assert sorted(texts(leader)) == ["told", "too"]
    assert accounts.totals(leader) == {"cash": 0, "new": 1}


Steps = Callable[[Session], object]


def publish(session: Session) -> None:
    """Write to the first database."""
    OUTBOX.publish(session, TOPIC, "never")


def flush(session: Session) -> None:
    """Write to the second database."""
    session.add(Account(name="new", total=1))
    session.flush()


def add_only(session: Session) -> None:
    """Write to the second database, but only during the commit."""
    session.add(Account(name="new", total=1))


@spread("steps", [(publish, flush), (flush, publish), (publish, add_only)])
def test_a_session_that_writes_to_two_databases(
    migrated: Database, other: Database, steps: tuple[Steps, ...]
) -> None:
    """If a session publishes in one database and writes to another, its commit raises an error before
    anything is committed, and the next user of either connection finds nothing left over."""
    first, second = migrated.engine(**POOL_OF_ONE), other.engine(**POOL_OF_ONE)
    with Session(first, binds={Account: second}) as session:
        for step in steps:
            step(session)
        with pytest.raises(UnusableConnection, match="nothing was committed"):
            session.commit()
    for engine in (first, second):
        with engine.begin() as connection:
            accounts.add(connection)
    assert accounts.totals(other.engine()) == accounts.totals(migrated.engine()) == {"cash": 1}
    assert texts(migrated.engine()) == []


def test_a_session_is_refused_for_its_messages_only(migrated: Database, other: Database) -> None:
    """A transaction on several databases is rejected only if it publishes something."""
    with Session(migrated.engine(), binds={Account: other.engine()}) as session:
        for is_refused in (False, True, False):
            session.execute(text("UPDATE account SET total = total + 1"))
            accounts.add(session)
            if is_refused:
                publish(session)
                with pytest.raises(inbox_errors.UnusableConnection):
                    session.commit()
                session.rollback()
            else:
                session.commit()
    assert balance(migrated) == balance(other) == 2
    assert texts(migrated.engine()) == []


@on("mariadb", "mysql")
def test_two_phases(migrated: Database, other: Database) -> None:
    """With a two-phase commit, a session can write to two databases."""
    with Session(migrated.engine(), binds={Account: other.engine()}, twophase=True) as session:
        accounts.add(session)
        OUTBOX.publish(session, TOPIC, "told")
        session.commit()
    assert balance(other) == 1
    assert texts(migrated.engine()) == ["told"]


@on("sqlite", "postgresql")
def test_a_swallowed_error_on_the_second_database(migrated: Database, other: Database) -> None:
    """If the application swallows an error that aborted its writes to the second database, the first database
    is not committed either."""
    with Session(migrated.engine(), binds={Account: other.engine()}) as session:
        publish(session)
        accounts.add(session)
        with pytest.raises(DBAPIError):
            session.execute(insert(Account), [{"name": "cash", "total": 1}])
        with pytest.raises(UnusableConnection):
            session.commit()
    assert balance(other) == 0
    assert texts(migrated.engine()) == []


ARGUMENTS: list[Callable[[Engine], dict[str, Any]]] = [
    lambda engine: {"bind": engine},
    lambda _: {"mapper": Account},
    lambda _: {"clause": select(Account)},
]


@on("sqlite")
@pytest.mark.parametrize("arguments", ARGUMENTS, ids=["bind", "mapper", "clause"])
def test_the_bind_can_be_named(migrated: Database, other: Database, arguments: Any) -> None:
    """`bind_arguments` chooses the outbox's database, as for `Session.execute`."""
    engine = migrated.engine()
    given = arguments(engine)
    with Session(other.engine(), binds={Account: engine}) as session:
        accounts.add(session)
        OUTBOX.publish(session, TOPIC, "1", bind_arguments=given)
        OUTBOX.publish_many(session, [Message(TOPIC, "2")], bind_arguments=given)
        session.commit()
    assert balance(migrated) == 1
    assert sorted(texts(engine)) == ["1", "2"]


@on("sqlite")
def test_the_outbox_has_a_bind_of_its_own(migrated: Database, other: Database) -> None:
    """If the session has a bind for the outbox's table, that bind is used; a session without any bind for it
    raises an error."""
    engine = migrated.engine()
    with Session(other.engine(), binds={schema.tables().message: engine, Account: engine}) as session:
        accounts.add(session)
        OUTBOX.publish(session, TOPIC, "told")
        session.commit()
    assert texts(engine) == ["told"]
    with Session(binds={Account: engine}) as session, pytest.raises(UnboundExecutionError):
        OUTBOX.publish(session, TOPIC, "never")


@on("sqlite")
def test_bad_bind_arguments(migrated: Database) -> None:
    """`bind_arguments` has to be a mapping with valid values, and is rejected on a Connection."""
    engine = migrated.engine()
    with Session(engine) as session, pytest.raises(InvalidOption, match="bind_arguments='x'"):
        OUTBOX.publish(session, TOPIC, "never", bind_arguments="x")  # type: ignore[call-overload]
    with Session(engine) as session, pytest.raises(InvalidOption, match=r"bind_arguments=.*str"):
        OUTBOX.publish(session, TOPIC, "never", bind_arguments={"bind": "x"})
    with engine.begin() as connection, pytest.raises(InvalidOption, match="bind_arguments="):
        OUTBOX.publish(connection, TOPIC, "never", bind_arguments={"bind": engine})
    assert texts(engine) == []
