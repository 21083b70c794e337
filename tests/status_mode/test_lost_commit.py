"""Steps of status-table mode whose connection breaks during COMMIT, on every SQL server."""

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine

from inbox import Claim, SqlStore, Status, StatusInbox, Verdict
from inbox.errors import CommitLost
from tests.exactly_once.test_lost_commit import is_commit
from tests.support import accounts
from tests.support.database import Database
from tests.support.on import REMOTE, on
from tests.support.proxy import TcpProxy
from tests.support.status_mode.stores import deliver, status_inbox, stored

pytestmark = [pytest.mark.mysql, on(*REMOTE)]

UNENCRYPTED: dict[str, dict[str, Any]] = {
    "psycopg": {"sslmode": "disable"},
    "pymysql": {"ssl_disabled": True},
}
"""What keeps a driver from hiding the COMMIT from the proxy."""


@pytest.fixture
def direct(migrated: Database) -> Engine:
    """An engine that bypasses the proxy, for a database with an account."""
    engine = migrated.engine()
    accounts.make(engine)
    return engine


@pytest.fixture
def proxy(direct: Engine) -> Iterator[TcpProxy]:
    """A proxy that can lose a COMMIT."""
    with TcpProxy(str(direct.url.host), direct.url.port or 0) as proxy:
        yield proxy


@pytest.fixture
def inbox(direct: Engine, proxy: TcpProxy) -> Iterator[StatusInbox]:
    """An inbox whose connections go through the proxy."""
    url = direct.url.set(host="127.0.0.1", port=proxy.port)
    engine = create_engine(url, connect_args=UNENCRYPTED[url.get_driver_name()])
    yield status_inbox(SqlStore(engine))
    engine.dispose()


@pytest.mark.parametrize("arrived", [True, False], ids=["arrived", "lost on the way"])
def test_a_step_finds_out_what_became_of_its_commit(
    direct: Engine, proxy: TcpProxy, inbox: StatusInbox, *, arrived: bool
) -> None:
    """If the COMMIT arrived, the step ends normally; if not, it raises CommitLost and nothing was written.
    After the next deliveries the step has taken effect once in both cases."""

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
