"""SQL that SQLAlchemy has compiled, shared by the engines of all tests in a process.

An engine keeps it for itself, and each test has engines of its own: to compile the same statements again for
each took up to a sixth of the time.
"""

from typing import Any

from sqlalchemy.util import LRUCache

PLACE = {"default_schema_name", "default_isolation_level"}
"""What a dialect knows about its database that makes no difference to SQL."""
PLAIN = (type(None), bool, int, str, tuple, type)


class CompiledSQL(LRUCache[Any, Any]):
    """Its keys name the settings of a dialect and the server's version instead of one engine's dialect."""

    def get(self, key: Any, default: Any = None) -> Any:
        """The compiled form of a statement."""
        return super().get(_shared(key), default)

    def __setitem__(self, key: Any, compiled: Any) -> None:
        super().__setitem__(_shared(key), compiled)


def _shared(key: Any) -> Any:
    dialect, *statement, translates_schemas, is_many = key
    # Which schemas a map may name depends on the first map that a statement was compiled for.
    settings = dialect if translates_schemas else _settings(dialect)
    return settings, *statement, translates_schemas, is_many


def _settings(dialect: Any) -> Any:
    known = ((name, value) for name, value in vars(dialect).copy().items() if name not in PLACE)
    return type(dialect), *(each for each in known if isinstance(each[1], PLAIN) or "_json_" in each[0])


SHARED = {"compiled_cache": CompiledSQL(2_000)}
"""Execution options of an engine that uses it."""
