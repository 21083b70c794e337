"""What the tests of publishing share."""

import pytest
from sqlalchemy import Engine

from tests.support import accounts
from tests.support.database import Database
from tests.support.published import beginning_early


@pytest.fixture
def engine(migrated: Database) -> Engine:
    """A database with a business table and an outbox, on which savepoints can be used."""
    return accounts.make(beginning_early(migrated))
