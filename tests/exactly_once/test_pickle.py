"""Inboxes and outboxes can be sent to other processes, as Celery, process pools and Spark do."""

import copy
import pickle
from typing import Any

import pytest

from inbox import AsyncInbox, Inbox, Verdict
from inbox_outbox_base.databases import taking_statements
from inbox_outbox_base.databases.postgresql.taking_statements import add_at_once
from outbox import Outbox
from tests.support.database import Database


@pytest.mark.parametrize("kind", [Inbox, AsyncInbox])
@pytest.mark.parametrize("schema", [None, "messaging"])
def test_an_unpickled_inbox_has_the_tables_of_its_process(kind: Any, schema: str | None) -> None:
    """An inbox refers to its tables by schema name, so its pickle is small and all copies share the tables of
    their process."""
    inbox = kind("billing", schema=schema)
    packed = pickle.dumps(inbox)
    assert len(packed) < 2_000
    assert pickle.loads(packed).tables is inbox.tables  # noqa: S301 - the test's own
    assert copy.deepcopy(inbox).tables is inbox.tables


def test_an_unpickled_outbox_has_them_too() -> None:
    """An unpickled outbox also shares the tables of its process."""
    box = Outbox(schema="messaging")
    assert pickle.loads(pickle.dumps(box)).tables is box.tables  # noqa: S301 - the test's own


def test_unpickled_inboxes_share_their_statements(postgres: Database) -> None:
    """50 unpickled inboxes share one cached statement of each kind, which is compiled once."""
    engine, packed = postgres.engine(), pickle.dumps(Inbox("billing"))
    Inbox("billing").accept_many(connection := engine.connect(), ["warm"])
    sizes = []
    for number in range(50):
        inbox: Inbox = pickle.loads(packed)  # noqa: S301 - the test's own
        assert inbox.accept(connection, f"order-{number}") is Verdict.NEW
        assert inbox.accept(connection, f"order-{number}") is Verdict.DUPLICATE
        caches = (add_at_once, taking_statements.find)
        sizes.append([cache.cache_info().currsize for cache in caches])
    connection.close()
    assert sizes[0] == sizes[-1]
