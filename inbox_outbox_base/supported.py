"""The databases on which the library is proven. A new one is a folder in `databases/` and its line here."""

from functools import cache
from importlib import import_module
from typing import Any

FOLDERS = {
    "postgresql": ("postgresql", "PostgreSQL"),
    "mysql": ("mysql", "MySQL"),
    "mariadb": ("mysql", "MySQL"),
    "sqlite": ("sqlite", "SQLite"),
}
"""By SQLAlchemy's name of the dialect: the folder, and the prefix of its classes."""


@cache
def part(contract: str, dialect: str) -> Any:
    """A database's class for one of the contracts; its module is imported on first use."""
    folder, name = FOLDERS[dialect]
    module = import_module(f"inbox_outbox_base.databases.{folder}.{contract}")
    return getattr(module, name + contract.capitalize())
