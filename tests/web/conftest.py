"""What the tests of the web page share."""

import pytest
from sqlalchemy import Engine

from tests.support.database import Database


@pytest.fixture
def engine(postgres: Database) -> Engine:
    """A database with the tables."""
    return postgres.engine()
