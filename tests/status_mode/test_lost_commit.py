"""Steps of status-table mode whose connection breaks during COMMIT, on every SQL server."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NoReturn

import pytest
from sqlalchemy import Engine, create_engine

from inbox import Claim, SqlStore, Status, StatusInbox, Verdict, release
from inbox.errors import CommitLost, GiveUp, LeaseLost, StoreUnreachable
from tests.exactly_once.test_lost_commit import is_commit
from tests.support import accounts
from tests.support.database import Database
from tests.support.on_servers import WITH_WRITERS, on
from tests.support.proxy import TcpProxy
from tests.support.status_mode.locks import proxied
from tests.support.status_mode.stores import CONSUMER, deliver, status_inbox, stored

pytestmark = [pytest.mark.mysql, on(*WITH_WRITERS, "psycopg2", "mysqldb")]


@pytest.fixture
def direct(migrated: Database) -> Engine:
    """An engine that bypasses the proxy, for a database with an account."""
    return accounts.make(migrated.engine())


@pytest.fixture
def way(direct: Engine) -> Iterator[tuple[TcpProxy, StatusInbox]]:
    """A proxy that can lose a COMMIT, and an inbox whose connections go through it."""
    with proxied(direct.url) as (proxy, url):
        engine = create_engine(url)
        yield proxy, status_inbox(SqlStore(engine))
        engine.dispose()


@pytest.mark.parametrize("arrived", [True, False], ids=["arrived", "lost on the way"])
def test_a_step_finds_out_what_became_of_its_commit(
    direct: Engine, way: tuple[TcpProxy, StatusInbox], *, arrived: bool
) -> None:
    """If the COMMIT arrived, the step ends normally; if not, it raises CommitLost and nothing was written.
    After the next deliveries the step has taken effect once in both cases."""
    proxy, inbox = way

    def body(claim: Claim) -> None:
        if not proxy.was_cut.is_set():
            proxy.cut_on(is_commit, forward=arrived)
        claim.transact("book", accounts.add)

    if arrived:
        assert deliver(inbox, body).verdict is Verdict.NEW
    else:
        with pytest.raises(CommitLost):
            deliver(inbox, body)
        assert (stored(inbox.store).status, stored(inbox.store).steps) == (Status.FAILED, None)
    assert proxy.was_cut.is_set()
    assert accounts.total(direct) == (1 if arrived else 0)
    assert deliver(inbox, body).verdict is (Verdict.DUPLICATE if arrived else Verdict.NEW)
    assert accounts.total(direct) == 1
    assert stored(inbox.store).status is Status.CONSUMED


def test_a_commit_of_which_nobody_knows(
    direct: Engine, way: tuple[TcpProxy, StatusInbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message's end does not overwrite the step that may be recorded, even if an earlier step is to be
    recorded with it. Nothing is decided for good, even if the handler gives up."""
    proxy, inbox = way

    def unreachable(*_: object) -> NoReturn:
        raise StoreUnreachable("it does not answer")

    def body(claim: Claim) -> None:
        claim.step("first", lambda: None, undo=undone.append)
        if proxy.was_cut.is_set():
            claim.step("earlier", lambda: None)
        else:
            with monkeypatch.context() as patch, suppress(StoreUnreachable):
                patch.setattr(inbox.store, "write", unreachable)
                claim.step("earlier", lambda: None)
            proxy.cut_on(is_commit, forward=True)
            monkeypatch.setattr(inbox.store, "find", unreachable)
        try:
            claim.transact("book", accounts.add)
        except StoreUnreachable as error:
            raise GiveUp from error

    undone: list[Any] = []
    with pytest.raises(GiveUp):
        deliver(inbox, body)
    monkeypatch.undo()
    assert proxy.was_cut.is_set()
    assert undone == []
    assert deliver(inbox, body).verdict is Verdict.NEW
    assert accounts.total(direct) == 1


def test_a_commit_that_arrives_late(
    direct: Engine, way: tuple[TcpProxy, StatusInbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction that seemed lost commits after all: neither the next transaction of the same attempt nor
    a decision for good hides it."""
    proxy, inbox = way

    def body(claim: Claim) -> None:
        if not proxy.was_cut.is_set():
            proxy.cut_on(is_commit, forward=True)
            with monkeypatch.context() as patch, suppress(CommitLost):
                patch.setattr(inbox.store, "find", lambda *_: None)  # the COMMIT is not done yet
                claim.transact("book", accounts.add)
            assert accounts.total(direct) == 1
            with pytest.raises(LeaseLost):
                claim.transact("other", accounts.add)
            raise GiveUp
        claim.transact("book", accounts.add)

    with pytest.raises((GiveUp, LeaseLost)):
        deliver(inbox, body)
    assert stored(inbox.store).status is Status.CONSUMING
    release(SqlStore(direct), CONSUMER, "a")
    assert deliver(inbox, body).verdict is Verdict.NEW
    assert accounts.total(direct) == 1
