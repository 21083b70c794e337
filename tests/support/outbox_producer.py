"""A process that publishes and is killed on the way: see outbox/test_crash.

Its arguments are the URL of the database, SOURCE and POINT.
"""

import os
import signal
import sys
from typing import Any, NoReturn

from sqlalchemy import Engine, create_engine, event

from outbox import Message, Outbox
from tests.support import accounts
from tests.support.published import TOPIC, WAYS


def main() -> None:
    """Publish three messages with one business row, and die at the point."""
    url, source, point = sys.argv[1:]
    engine = create_engine(url)
    kill_at(engine, point)
    with WAYS[source](engine) as handle:
        Outbox().publish(handle, TOPIC, "1", key="k")
        accounts.add(handle)
        Outbox().publish_many(handle, [Message(TOPIC, each, "k") for each in "23"])
        if point == "after publish":
            die()


def kill_at(engine: Engine, point: str) -> None:
    """Arrange that this process is killed when it reaches the point."""
    if point == "after business row":
        event.listen(engine, "after_cursor_execute", _die_after_update)
    elif point == "before commit":
        event.listen(engine, "commit", die)  # after what a session writes last
    elif point == "after commit":
        # A connection comes back to the pool once its COMMIT has been answered.
        event.listen(engine, "commit", lambda _: event.listen(engine, "checkin", die))


def _die_after_update(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
    if "UPDATE account" in statement:
        die()


def die(*_: Any) -> NoReturn:
    """Kill this process, as `kill -9` does."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("survived kill -9")
