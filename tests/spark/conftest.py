"""What most tests of writes without Spark need."""

import pytest
from sqlalchemy import Engine

from tests.support.database import Database
from tests.support.spark.writes import make_result


@pytest.fixture
def engine(migrated: Database) -> Engine:
    """A database with the result table."""
    return make_result(migrated)
