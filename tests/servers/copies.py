"""Databases that are used again once they have been put into the state of their template: to make and drop a
database takes longer than most tests."""

from collections.abc import Callable
from typing import Protocol

from sqlalchemy import URL


class Template(Protocol):
    """A database that stays as it is."""

    def copy(self) -> URL:
        """Make a database like it."""
        ...

    def restore(self, copy: URL) -> bool:
        """Put a copy into this one's state; False if that cannot be done."""
        ...


class Copies:
    """Copies of one database, each for one test at a time.

    A copy that was used is put into the template's state before it is used again. It is dropped instead if
    that cannot be done: its tables are not the template's any more, or somebody is still connected to it.
    """

    def __init__(self, template_at: Callable[[URL], Template], drop: Callable[[URL], None]) -> None:
        self._template_at = template_at
        self._drop = drop
        self._template: Template | None = None
        self._copies: set[str] = set()
        self._spare: list[URL] = []

    def take(self, template: URL) -> URL:
        """A database like the template, which is always the same."""
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
        """Keep a copy for later; drop what is none."""
        if str(gone.database) in self._copies:
            self._spare.append(gone)
        else:
            self._drop(gone)

    def close(self) -> None:
        """Drop what is left."""
        for spare in self._spare:
            self._drop(spare)
