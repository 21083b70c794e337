"""Fixtures of the plugin `inbox-outbox` for pytest, which `inbox_outbox._pytest_plugin` names.

pytest loads this module in every run, so it imports nothing before a test asks for a fixture.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from sqlalchemy import URL, Engine, MetaData

    from inbox_outbox.testing import RolledBack


@pytest.fixture(scope="session")
def inbox_outbox_url() -> "str | URL | None":
    """The database for tests; None is SQLite in a temporary file. Override it in your `conftest.py`."""
    return None


@pytest.fixture(scope="session")
def inbox_outbox_metadata() -> "MetaData | None":
    """Your own tables, which are made, and emptied, together with ours. Override it in your `conftest.py`."""
    return None


@pytest.fixture(scope="session")
def inbox_outbox_engine(inbox_outbox_url: Any, inbox_outbox_metadata: Any) -> "Iterator[Engine]":
    """The migrated database, made once: `inbox_outbox.testing.database`."""
    from inbox_outbox.testing import database

    with database(inbox_outbox_url, metadata=inbox_outbox_metadata) as engine:
        yield engine


@pytest.fixture
def rolled_back(inbox_outbox_engine: Any) -> "Iterator[RolledBack]":
    """A transaction that is rolled back after the test: `inbox_outbox.testing.rolled_back`."""
    from inbox_outbox.testing import rolled_back

    with rolled_back(inbox_outbox_engine) as test:
        yield test


@pytest.fixture
def emptied_engine(inbox_outbox_engine: Any, inbox_outbox_metadata: Any) -> "Iterator[Engine]":
    """The database, emptied after the test: `inbox_outbox.testing.emptied`."""
    from inbox_outbox.testing import emptied

    with emptied(inbox_outbox_engine, metadata=inbox_outbox_metadata) as engine:
        yield engine
