"""The store goes back to an older record while a handler runs, as after a fail-over: what is decided for good
still rests on all that the handler knows."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis
from sqlalchemy import create_engine, select, update

from inbox import Claim, Status, Verdict, resolve_step, retry
from inbox._status_mode.hold import Hold
from inbox._status_mode.stores import Store
from inbox.errors import GiveUp
from inbox.schema import tables
from tests.status_mode.test_steps import Calls, called, undoing
from tests.support.database import dispose
from tests.support.on_servers import on
from tests.support.status_mode.stores import CONSUMER, Place, deliver, fail, status_inbox, stored

everywhere = on("sqlite", "postgresql", "mariadb", "mysql", "redis", fixture="place")


@contextmanager
def lost(place: Place) -> Iterator[None]:
    """What the block writes about messages is lost."""
    if place.name == "redis":
        with redis.Redis.from_url(place.url) as client:
            saved = {name: client.dump(name) for name in client.scan_iter(f"{place.prefix}:*")}
            yield
            for name, value in saved.items():
                client.restore(name, 60_000, value, replace=True)
        return
    engine, status = create_engine(place.url), tables().status
    with engine.connect() as connection:
        rows = connection.execute(select(status)).mappings().all()
    yield
    with engine.begin() as connection:
        for row in rows:
            connection.execute(update(status).where(status.c.key == row["key"]).values(**row))
    dispose(engine)


@everywhere
def test_the_beginning_of_a_step_is_lost(place: Place, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message halts for the step, which an operator can resolve."""
    inbox, begin_step = status_inbox(store), Hold.begin_step

    def losing(hold: Hold, *given: Any, **options: Any) -> bool:
        with lost(place):
            return begin_step(hold, *given, **options)

    monkeypatch.setattr(Hold, "begin_step", losing)
    deliver(inbox, lambda claim: claim.step("charge", fail, on_unknown="halt"))
    assert (stored(store).status, stored(store).pending_step) == (Status.HALTED, "charge")
    resolve_step(store, CONSUMER, "a", "charge", "done")
    assert deliver(inbox, lambda claim: claim.step("charge", fail, on_unknown="halt")).is_new


@everywhere
def test_the_end_of_an_undo_is_lost(place: Place, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record of the dead message has it, so that an operator's retry runs the step again."""
    inbox, calls, undone = status_inbox(store), Calls(), Hold.undone

    def losing(hold: Hold, name: str) -> None:
        with lost(place):
            undone(hold, name)

    def body(claim: Claim) -> None:
        claim.step("lock", called(calls, "lock"), undo=undoing(calls, "lock"))
        if len(calls) == 1:
            raise GiveUp

    monkeypatch.setattr(Hold, "undone", losing)
    with pytest.raises(GiveUp):
        deliver(inbox, body)
    assert (stored(store).status, stored(store).undos) == (Status.DEAD, 0)
    retry(store, CONSUMER, "a")
    assert deliver(inbox, body).verdict is Verdict.NEW
    assert [each.split(" None")[0] for each in calls] == ["lock", "undo lock", "lock"]
