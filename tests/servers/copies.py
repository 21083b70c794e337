"""Databases that tests use one after another, each time reset to the state of their template: creating and
dropping a database takes longer than most tests."""

from collections.abc import Callable
from typing import Protocol

from sqlalchemy import URL


class Template(Protocol):
    """A database that never changes."""

    def copy(self) -> URL:
        """Create a database with the same contents."""
        ...

    def restore(self, copy: URL) -> bool:
        """Reset a copy to the template's state; return False if that is impossible."""
        ...


class Copies:
    """Copies of one database, each for one test at a time.

    A used copy is reset to the template's state before it is used again. It is dropped instead if that is
    impossible: its tables have changed, or somebody is still connected to it.
    """

    def __init__(self, template_at: Callable[[URL], Template], drop: Callable[[URL], None]) -> None:
        self._template_at = template_at
        self._drop = drop
        self._template: Template | None = None
        self._copies: set[str] = set()
        self._spare: list[URL] = []

    def take(self, template: URL) -> URL:
        """A database in the template's state."""
        if self._template is None:
            self._template = self._template_at(template)
        while self._spare:
            spare = self._spare.pop()
            if self._template.restore(spare):
                return spare
            self._copies.discard(str(spare.database))
            self._drop(spare)
        copy = self._template.copy()
        self._copies.add(str(copy.database))
        return copy

    def give_back(self, gone: URL) -> None:
        """Keep a copy for later; drop a database that is not a copy."""
        if str(gone.database) in self._copies:
            self._spare.append(gone)
        else:
            self._drop(gone)

    def close(self) -> None:
        """Drop the remaining copies."""
        for spare in self._spare:
            self._drop(spare)
