"""What the tests of operating share."""

import pytest
from sqlalchemy import Engine

from tests.support.database import Database


@pytest.fixture
def engine(migrated: Database) -> Engine:
    """A database with an outbox."""
    return migrated.engine()
