"""From a queue of DBOS, as docs/moving.md says: the same messages come to workflows of the old version, to
those with both guards, and to a handler without DBOS."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.support import accounts
from tests.support.database import Database
from tests.support.moving import NEW, Pages, assert_once, deliver, orders
from tests.support.together import together

dbos = pytest.importorskip("dbos", reason="DBOS is not installed here: make frameworks")

KEYS = [f"order-{number}" for number in range(12)]


@contextmanager
def launched(pages: Pages, version: str, *changes: tuple[str, str]) -> Iterator[Callable[[list[str]], None]]:
    """A version of the page's workflow, in DBOS with its tables in the reader's database; the function
    enqueues orders and waits for them."""
    url = pages.names["engine"].url.render_as_string(hide_password=False)
    settings = {"name": "shop", "system_database_url": url, "log_level": "ERROR"}
    dbos.DBOS(config={**settings, "application_version": version})
    pages.run("@DBOS.workflow()", *changes)
    dbos.DBOS.launch()
    queue = dbos.DBOS.register_queue("billing", polling_interval_sec=0.1)

    def enqueue(keys: list[str]) -> None:
        handles = []
        for key in keys:
            with dbos.SetWorkflowID(key):
                handles.append(queue.enqueue(pages.names["bill_order"]))
        for handle in handles:
            handle.get_result(polling_interval_sec=0.1)

    try:
        yield enqueue
    finally:
        dbos.DBOS.destroy(destroy_registry=True)


def test_from_a_queue_of_dbos(postgres: Database) -> None:
    """An id that was enqueued once does nothing when it is enqueued again, in any version. Once the ids of
    ended workflows are carried over, the handler alone knows them, too; and messages that come to it and to
    workflows at the same time take effect once."""
    engine = accounts.make(postgres.engine(pool_size=16), KEYS)
    pages = Pages(engine)
    pages.run("def carry_over")
    bill = pages.run("OLD =", NEW)

    def write(key: str) -> None:
        with engine.begin() as connection:
            accounts.add(connection, key)

    pages.names["write"] = write
    with launched(pages, "1", ('bill({"id": DBOS.workflow_id})', "write(DBOS.workflow_id)")) as enqueue:
        enqueue(KEYS[:6])
    with launched(pages, "2") as enqueue:
        enqueue(KEYS[:8])
        pages.run("ENDED = ")
        together([lambda: enqueue(KEYS), lambda: deliver(orders(KEYS[::-1], 2), bill)])
    assert_once(engine, KEYS)
