"""A process forked inside a handler does not touch the transaction."""

import pytest

from inbox import Inbox, Verdict
from tests.support import accounts, fork_worker
from tests.support.database import Database
from tests.support.forked import run_module
from tests.support.on_servers import on


@on("postgresql", "mariadb", "sqlite")  # one for each driver
@pytest.mark.parametrize(
    ("source", "ending", "error"),
    [("engine", "raises", "SystemExit"), ("session", "returns", "TransactionEnded")],
)
def test_a_fork_inside_a_handler(migrated: Database, source: str, ending: str, error: str) -> None:
    """A child forked inside a handler leaves the block and exits while the parent's transaction is still
    open: only the parent commits, with everything it wrote. A child that reaches the end of the block gets an
    error."""
    engine = accounts.make(migrated.engine())
    url = migrated.url.render_as_string(hide_password=False)
    done = run_module("tests.support.fork_worker", url, source, ending)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [f"child: {error}", "parent: new"]
    assert accounts.total(engine) == 1
    with engine.begin() as connection:
        assert Inbox("bookkeeping").accept(connection, fork_worker.KEY) is Verdict.DUPLICATE
