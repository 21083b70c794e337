"""The contract between a migration and a database."""

from abc import ABC, abstractmethod
from typing import Literal

from sqlalchemy import Connection


class Migrating(ABC):
    """One subclass for each database."""

    isolation: Literal["READ COMMITTED", "SERIALIZABLE"] = "READ COMMITTED"
    """A snapshot taken before the wait would hide the changes of the migration before."""

    has_schemas = False
    """Whether the tables can be in a schema inside the database."""

    commits_ddl = False
    """Whether DDL commits what came before it, and itself."""

    starts_over = False
    """Whether a migration that waited too long for a table starts over, until a minute has passed."""

    @abstractmethod
    def wait_for_turn(self, connection: Connection, seconds: int, table_seconds: int) -> bool:
        """Prevent other migrations until this transaction, or this session, is over.

        Args:
            seconds: how long to wait for another migration; a driver error or False means that it took
                longer.
            table_seconds: how long each statement after this may wait for a table, where that can be limited.
        """
