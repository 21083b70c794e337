"""Counts what a purge would delete."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from sqlalchemy import Connection

from inbox_outbox_base.checks.key_times import KeyForm
from inbox_outbox_base.databases import taking_statements
from inbox_outbox_base.transactions.policy import Policy

from .purging import PurgeRun, Shelf


class PurgeCount(PurgeRun):
    """The same as a purge, except that it only reads. Its rows are those that are old enough."""

    def policies(self, consumer: str | None) -> dict[str, Policy]:
        """The stored policies."""
        return self.stored(consumer)

    def horizon(self, consumer: str, form: KeyForm) -> Callable[[str], str]:
        """The lowest key to keep; nothing is stored."""
        return lambda consumer: self.kept.keys_since(consumer, form)

    def empty(self, shelf: Shelf) -> bool:
        """Count the old rows; False if the budget ran out first."""
        if self._is_over():
            return False
        old, given = taking_statements.count_old(shelf.aging), shelf.until()
        self.rows += self.transact(shelf.aging.table, lambda each: int(each.execute(old, given).scalar_one()))
        return True

    def _forget(self, old: dict[str, Any], loads: Sequence[int]) -> bool:
        """The same for the rows of old loads."""
        if self._is_over():
            return False
        message, is_timed = self.tables.message, self.kept.form(old["consumer_"]) is not None
        if message in self.there and not is_timed:
            given = {"consumer_": old["consumer_"], "loads": loads}
            self.rows += self.transact(message, partial(self._counted, given))
        return True

    def _counted(self, given: dict[str, Any], connection: Connection) -> int:
        found = connection.execute(taking_statements.count_of_loads(self.tables), given)
        return int(found.scalar_one())
