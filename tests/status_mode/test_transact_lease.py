"""A transaction that runs longer than its message's lease, next to other messages of the same inbox."""

import time

import pytest
from sqlalchemy import Connection

from inbox import Claim, SqlStore, StatusInbox
from inbox.errors import InvalidOption
from tests.support import accounts
from tests.support.database import Database

pytestmark = pytest.mark.mysql


def test_other_messages_keep_their_leases(migrated: Database) -> None:
    """While a transaction locks its message's record, heartbeats still renew the leases of all other
    messages, and its own `heartbeat` does not block on its own row."""
    if migrated.name == "sqlite":
        pytest.skip("SQLite has one writer: while a transaction writes nothing else does")
    engine = migrated.engine()
    accounts.make(engine)
    inbox = StatusInbox("orders", store=SqlStore(engine), lease=3)

    def slow(connection: Connection) -> None:
        accounts.add(connection)
        time.sleep(4)
        claim.heartbeat()
        assert (claim.lost, other.lost) == (False, False)

    with inbox.claim("other") as other, inbox.claim("a") as claim:
        claim.transact("slow", slow)
        assert not claim.lost
    assert accounts.total(engine) == 1


def test_no_step_inside_a_transaction(migrated: Database) -> None:
    """A step inside a transaction is rejected without being called, because it could not be recorded."""
    inbox = StatusInbox("orders", store=SqlStore(migrated.engine()))
    with inbox.claim("a") as claim:
        with pytest.raises(InvalidOption, match="step='inner': step 'outer' is still running"):
            claim.transact("outer", lambda _: _step(claim))
        assert claim.step("inner", lambda: 1) == 1


def _step(claim: Claim) -> None:
    claim.step("inner", lambda: pytest.fail("it was called"))
