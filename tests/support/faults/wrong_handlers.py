"""Handlers with one mistake each. The fault kit's processes import this file."""

import os
import threading
import time
from typing import Any

from sqlalchemy import Connection, create_engine, text

from inbox_outbox import faults

ENGINE = create_engine(os.environ.get("SHOP_URL", "sqlite://"))
BILL = text("INSERT INTO bill VALUES (:order, :cents)")
LOCK = 0.3
REMEMBERED: set[str] = set()

Message = dict[str, Any]


def naive(message: Message) -> None:
    """It writes, and knows of no duplicates."""
    with ENGINE.begin() as connection:
        connection.execute(BILL, message)


def claims_first(message: Message) -> None:
    """The claim is committed before the effect: a crash in between loses the effect."""
    with ENGINE.begin() as connection:
        is_new = _claim(connection, message)
    if is_new:
        with ENGINE.begin() as connection:
            connection.execute(BILL, message)


def writes_first(message: Message) -> None:
    """The effect is committed before the claim: a crash in between doubles it."""
    with ENGINE.begin() as connection:
        if _is_known(connection, message):
            return
        connection.execute(BILL, message)
    with ENGINE.begin() as connection:
        _claim(connection, message)


def calls_before_commit(message: Message) -> None:
    """Another service is called in the transaction, which may still fail."""
    with ENGINE.begin() as connection:
        if _claim(connection, message):
            connection.execute(BILL, message)
            faults.effect("charge")


def commits_in_the_middle(message: Message) -> None:
    """The transaction ends before the second effect."""
    with ENGINE.connect() as connection:
        if _claim(connection, message):
            connection.execute(BILL, message)
            connection.commit()
            connection.execute(BILL, {"order": f"{message['order']}-freight", "cents": 90})
            connection.commit()


def autocommits(message: Message) -> None:
    """Each statement is a transaction of its own."""
    with ENGINE.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        if _claim(connection, message):
            connection.execute(BILL, message)


def swallows(message: Message) -> None:
    """An error is logged instead of raised, so the message is acknowledged."""
    try:
        with ENGINE.begin() as connection:
            if _claim(connection, message):
                connection.execute(BILL, message)
    except Exception:  # noqa: BLE001, S110 - the mistake
        pass


def draws_its_key(message: Message) -> None:
    """The key is not the message's: each delivery has another one."""
    with ENGINE.begin() as connection:
        if _claim(connection, message | {"order": f"{message['order']}-{time.time_ns()}"}):
            connection.execute(BILL, message)


def publishes_after_commit(message: Message) -> None:
    """The event is sent when the transaction is over: a crash in between loses it."""
    with ENGINE.begin() as connection:
        is_new = _claim(connection, message)
        if is_new:
            connection.execute(BILL, message)
    if is_new:
        faults.effect("billed")


def looks_then_writes(message: Message) -> None:
    """Two that look at the same time both find nothing."""
    with ENGINE.begin() as connection:
        if not connection.scalar(text("SELECT count(*) FROM bill WHERE id = :order"), message):
            connection.execute(BILL, message)


def answers_early(message: Message) -> None:
    """The message is acknowledged while a thread still works on it."""
    threading.Thread(target=_bill, args=(message,)).start()


def locks_for_a_while(message: Message) -> None:
    """A lock that expires unless it is renewed is all that holds a duplicate back."""
    from redis import Redis  # the others do without

    redis, is_over = Redis.from_url(os.environ["SHOP_REDIS"]), threading.Event()
    milliseconds = int(LOCK * 1000)

    def renew() -> None:
        while not is_over.wait(LOCK / 5):
            redis.pexpire(message["order"], milliseconds)

    if redis.set(message["order"], "1", nx=True, px=milliseconds):
        threading.Thread(target=renew, daemon=True).start()
        try:
            with ENGINE.begin() as connection:
                connection.execute(BILL, message)
        finally:
            is_over.set()


def remembers(message: Message) -> None:
    """The process remembers what it has seen: the next process does not."""
    if message["order"] not in REMEMBERED:
        REMEMBERED.add(message["order"])
        with ENGINE.begin() as connection:
            connection.execute(BILL, message)


def _bill(message: Message) -> None:
    time.sleep(0.05)
    with ENGINE.begin() as connection:
        if _claim(connection, message):
            connection.execute(BILL, message)


def _is_known(connection: Connection, message: Message) -> bool:
    return bool(connection.scalar(text("SELECT count(*) FROM seen WHERE id = :order"), message))


def _claim(connection: Connection, message: Message) -> bool:
    """Take the message's key, once, whoever else tries; for PostgreSQL."""
    taken = text("INSERT INTO seen VALUES (:order) ON CONFLICT DO NOTHING")
    return connection.execute(taken, message).rowcount == 1
