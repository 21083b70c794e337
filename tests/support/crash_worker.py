"""A worker process that takes one message and is killed on the way: see test_crash.

Its arguments are the URL of the database, SOURCE, POINT and KEY. It prints "ack" when the message may be
acknowledged.
"""

import os
import signal
import sys
from typing import Any, NoReturn

from sqlalchemy import Engine, create_engine, event
from sqlalchemy.engine.default import DefaultDialect
from sqlalchemy.orm import sessionmaker

from inbox import Inbox
from tests.support import accounts

POINTS = ("after accept", "before commit", "after commit", "never")


def main() -> None:
    """Take the message `key`, and die at `point`."""
    url, source, point, key = sys.argv[1:]
    engine = create_engine(url)
    kill_at(engine, point)
    handled = sessionmaker(engine) if source == "session" else engine

    @Inbox("bookkeeping").handler(handled, key=str)
    def book(handle: Any, message: str) -> None:
        accounts.add(handle)

    book(key)
    print("ack", flush=True)


def kill_at(engine: Engine, point: str) -> None:
    """Arrange that this process is killed when it reaches the point."""
    if point == "after accept":
        event.listen(engine, "after_cursor_execute", _die_after_insert)
    elif point == "before commit":
        event.listen(engine, "commit", _die)
    elif point == "after commit":
        event.listen(engine, "commit", lambda _: die_once_answered())


def die_once_answered() -> None:
    """Arrange that this process is killed when its next COMMIT has been answered."""
    commit = DefaultDialect.do_commit

    def commit_and_die(self: DefaultDialect, connection: Any) -> None:
        commit(self, connection)  # type: ignore[no-untyped-call]
        _die()

    DefaultDialect.do_commit = commit_and_die  # type: ignore[method-assign]


def _die_after_insert(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
    if "INSERT" in statement and "inbox_message" in statement:
        _die()


def _die(*_: Any) -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("survived kill -9")
