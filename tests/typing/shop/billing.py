"""The exactly-once path."""

from typing import Any, TypedDict, assert_type

from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from inbox import Inbox, Outcome, Taken, Verdict, Work


class Sale(TypedDict):
    order_id: str
    cents: int


class ShopSession(Session):
    """A class of sessions of one's own."""


engine = create_engine("sqlite:///shop.db")
sessions = sessionmaker(engine)
own_sessions = sessionmaker(engine, class_=ShopSession)
inbox = Inbox("billing")
sale: Sale = {"order_id": "order-1", "cents": 500}


def later() -> Engine:
    return engine


def later_sessions() -> sessionmaker[ShopSession]:
    return own_sessions


def either() -> Engine | sessionmaker[Session]:
    return sessions


# The first parameter of a handler's body is what its source makes.


@inbox.handler(engine, key=lambda message: message["order_id"], payload=lambda message: message["cents"])
def bill(connection: Connection, message: Sale) -> dict[str, int]:
    connection.execute(text("INSERT INTO invoice VALUES (:order_id, :cents)"), dict(message))
    return {"invoice": 7}


@inbox.handler(sessions, key=lambda message: message["order_id"])
def bill_in_session(session: Session, message: Sale) -> None:
    session.execute(text("INSERT INTO invoice VALUES (:order_id, :cents)"), dict(message))


@inbox.handler(own_sessions, key=lambda message: ("order", message["order_id"]))
def bill_in_own_session(session: ShopSession, message: Sale) -> tuple[str, int]:
    return message["order_id"], message["cents"]


@inbox.handler(scoped_session(own_sessions), key=lambda message: message["order_id"])
def bill_in_scoped_session(session: ShopSession, message: Sale) -> Sale:
    return message


@inbox.handler(later, key=lambda message: message["order_id"])
def bill_later(connection: Connection, message: Sale) -> list[int]:
    return [message["cents"]]


@inbox.handler(later_sessions, key=lambda message: message["order_id"])
def bill_in_later_session(session: ShopSession, message: Sale) -> str:
    return message["order_id"]


@inbox.handler(either(), key=lambda message: message["order_id"])
def bill_on_either(handle: Connection | Session, message: Sale) -> None:
    handle.execute(text("SELECT 1"))


@inbox.handler(either, key=lambda message: message["order_id"])
def bill_on_either_later(handle: Connection | Session, message: Sale) -> None:
    handle.execute(text("SELECT 1"))


assert_type(bill(sale), Outcome)
assert_type(bill_in_own_session(sale).verdict, Verdict)
bill(5)  # E: arg-type, reportArgumentType
bill()  # E: call-arg, reportCallIssue


@inbox.handler(engine, key=lambda message: message["order_id"])  # E: arg-type, reportArgumentType
def bill_on_the_wrong_handle(session: Session, message: Sale) -> None:
    session.flush()


@inbox.handler(engine, key=lambda message: message["order_id"])  # E: arg-type, reportArgumentType
async def bill_asynchronously(connection: Connection, message: Sale) -> None:
    connection.execute(text("SELECT 1"))


@inbox.handler(engine, key=lambda message: message["order_id"])  # E: arg-type, reportArgumentType
def bill_for_a_set(connection: Connection, message: Sale) -> set[str]:
    return {message["order_id"]}


@inbox.handler(engine)  # E: call-overload, reportCallIssue
def bill_without_key(connection: Connection, message: Sale) -> None:
    connection.execute(text("SELECT 1"))


# A transaction on an engine has no session.

with inbox.transaction(engine, "order-1") as work:
    assert_type(work.connection, Connection)
    assert_type(work.verdict, Verdict)
    assert_type(work.is_new, bool)
    work.result = {"invoice": 7}
    work.session.flush()  # E: attr-defined, reportAttributeAccessIssue

with inbox.transaction(sessions, ("order", 1), payload=("order-1", 500)) as in_session:
    assert_type(in_session.session, Session)
    assert_type(in_session.connection, Connection)

with inbox.transaction(own_sessions, 1) as in_own_session:
    assert_type(in_own_session.session, ShopSession)

with inbox.transaction(scoped_session(own_sessions), 1) as in_scoped_session:
    assert_type(in_scoped_session.session, ShopSession)

with inbox.transaction(later, 1) as on_later:
    on_later.session.flush()  # E: attr-defined, reportAttributeAccessIssue

with inbox.transaction(later_sessions, 1) as in_later_session:
    assert_type(in_later_session.session, ShopSession)

with inbox.transaction(either, 1) as on_either:
    assert_type(on_either.connection, Connection)


def insert_invoice(work: Work[Connection, Any]) -> None:
    work.connection.execute(text("INSERT INTO invoice VALUES ('order-1', 500)"))


insert_invoice(work)
insert_invoice(in_session)
inbox.transaction("sqlite:///shop.db", "order-1")  # E: call-overload, reportCallIssue
inbox.transaction(engine, 1.5)  # E: call-overload, reportCallIssue

# In the caller's transaction.

with engine.begin() as connection:
    assert_type(inbox.accept(connection, "order-1"), Verdict)
    assert_type(inbox.accept_many(connection, ["order-1", ("order", 2)]), list[Verdict])
    taken = inbox.take(connection, "order-1")
    assert_type(taken, Taken)
    taken.result = 5

with own_sessions.begin() as session:
    inbox.accept(session, "order-1")
inbox.accept(scoped_session(own_sessions), "order-1")
inbox.accept(engine, "order-1")  # E: arg-type, reportArgumentType
