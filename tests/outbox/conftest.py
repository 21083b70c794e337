"""What the tests of publishing share."""

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from tests.support import accounts
from tests.support.database import Database
from tests.support.published import beginning_early


@pytest.fixture
def engine(migrated: Database) -> Engine:
    """A database with a business table and an outbox, on which savepoints can be used."""
    return accounts.make(beginning_early(migrated))


@pytest.fixture
def session(engine: Engine) -> Iterator[Session]:
    """A session with its own transaction."""
    with Session(engine) as session:
        yield session
