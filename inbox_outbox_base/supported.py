"""Supported databases. A new one is a folder in `databases/` and a line here."""

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

_IN_DIALECT = ("codes", "connecting", "migrating", "storing")


@cache
def part(contract: str, dialect: str) -> Any:
    """A database's class for one of the contracts; its module is imported on first use."""
    folder, name = FOLDERS[dialect]
    file = "dialect" if contract in _IN_DIALECT else contract
    module = import_module(f"inbox_outbox_base.databases.{folder}.{file}")
    return getattr(module, name + contract.capitalize())
