"""Savepoints in random combinations: the messages sent are those that a model of the transaction predicts."""

import contextlib
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, Engine, delete
from sqlalchemy.orm import Session

from outbox import Message, Outbox
from outbox.schema import tables
from tests.support import accounts
from tests.support.accounts import Account
from tests.support.database import Database
from tests.support.published import TOPIC, Handle, texts

OUTBOX = Outbox()

steps = st.one_of(
    st.tuples(st.just("publish"), st.integers(0, 2)),
    st.tuples(st.just("publish"), st.integers(0, 2)),
    st.tuples(st.just("write")),
    st.tuples(st.just("begin_nested")),
    st.tuples(st.just("begin_nested")),
    st.tuples(st.just("release"), st.integers(0, 3)),
    st.tuples(st.just("roll back"), st.integers(0, 3)),
    st.tuples(
        st.just("fail"),
    ),
    st.tuples(st.just("commit")),
    st.tuples(st.just("roll back all")),
    st.tuples(st.just("close")),
)
"""Numbers are the count of messages, or the index of an open savepoint, from the outermost."""


@dataclass
class Life:
    """A Connection or Session in use, and the messages of each open transaction or savepoint."""

    handle: Handle
    open: list[list[str]] = field(default_factory=lambda: [[]])
    savepoints: list[Any] = field(default_factory=list)
    committed: list[str] = field(default_factory=list)
    drawn: int = 0

    def publish(self, many: int) -> None:
        """Publish one message, or several in one call."""
        names = [f"{self.drawn + number}" for number in range(max(many, 1))]
        self.drawn += len(names)
        if many == 1:
            OUTBOX.publish(self.handle, TOPIC, names[0], key="k")
        else:
            OUTBOX.publish_many(self.handle, [Message(TOPIC, name, "k") for name in names])
        self.open[-1] += names

    def write(self) -> None:
        """Write a business row, so that savepoints contain something else too."""
        self.drawn += 1
        row = Account(name=f"row {self.drawn}", total=0)
        if isinstance(self.handle, Session):
            self.handle.add(row)
        else:
            accounts.open_account(self.handle, row.name)

    def begin_nested(self) -> None:
        """Begin a savepoint inside the innermost one."""
        self.savepoints.append(self.handle.begin_nested())
        self.open.append([])

    def release(self, depth: int) -> None:
        """Release a savepoint, with those inside it."""
        if depth < len(self.savepoints):
            self.inner_first(depth, "commit")
            self.open[depth] += [name for names in self.open[depth + 1 :] for name in names]
            self.forget(depth)

    def roll_back(self, depth: int) -> None:
        """Roll back a savepoint, and those inside it."""
        if depth < len(self.savepoints):
            self.inner_first(depth, "rollback")
            self.forget(depth)

    def inner_first(self, depth: int, end: str) -> None:
        """End a savepoint after those inside it. A Session ends the inner ones by itself, a Connection does
        not."""
        begin = depth if isinstance(self.handle, Connection) else len(self.savepoints)
        for savepoint in [*self.savepoints[:begin:-1], self.savepoints[depth]]:
            getattr(savepoint, end)()

    def fail(self) -> None:
        """Begin a savepoint and end it with an exception."""
        self.begin_nested()
        with contextlib.suppress(ZeroDivisionError), self.savepoints[-1]:
            self.publish(1)
            raise ZeroDivisionError
        self.forget(len(self.savepoints) - 1)

    def forget(self, depth: int) -> None:
        """Forget the savepoints from this depth on: they have ended."""
        del self.savepoints[depth:], self.open[depth + 1 :]

    def end(self, how: str) -> None:
        """End the transaction."""
        if how == "commit":
            self.handle.commit()
            self.committed += [name for names in self.open for name in names]
        elif how == "close" and isinstance(self.handle, Session):
            self.handle.close()
        else:
            self.handle.rollback()
        self.savepoints, self.open = [], [[]]


def live(handle: Handle, plan: list[tuple[Any, ...]]) -> list[str]:
    """Do what the plan says; return the messages that have to be sent."""
    life = Life(handle)
    for step in plan:
        match step:
            case ("publish", many):
                life.publish(many)
            case ("write",):
                life.write()
            case ("begin_nested",):
                life.begin_nested()
            case ("release", depth):
                life.release(depth)
            case ("roll back", depth):
                life.roll_back(depth)
            case ("fail",):
                life.fail()
            case ("roll back all",):
                life.end("roll back")
            case (end,):
                life.end(end)
    life.end("close")
    return life.committed


@pytest.mark.parametrize("kind", ["connection", "session"])
def test_the_messages_sent_are_those_of_the_model(migrated: Database, engine: Engine, kind: str) -> None:
    """For any sequence of messages, savepoints begun, released and rolled back in any order, commits,
    rollbacks and closes, a relay finds exactly the messages that were committed, in order."""

    relaying = migrated.engine()

    @settings.get_profile("on servers")
    @given(plan=st.lists(steps, max_size=30))
    def check(plan: list[tuple[Any, ...]]) -> None:
        delete_all(engine)
        with engine.connect() if kind == "connection" else Session(engine) as handle:
            expected = live(handle, plan)
        assert texts(relaying) == expected

    check()


def delete_all(engine: Engine) -> None:
    """Delete all business rows and messages, so that names are free and one failure does not cause
    another."""
    with engine.begin() as connection:
        connection.execute(delete(Account))
        connection.execute(delete(tables().message))
