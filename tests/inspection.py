"""What a database says about its tables, in a form that can be compared."""

from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import Engine, Inspector, inspect


def snapshot(engine: Engine, schema: str | None = None) -> dict[str, Any]:
    """Everything that SQLAlchemy can reflect about every table, by the table's name."""
    inspector = inspect(engine)
    return {name: _table(inspector, name, schema) for name in inspector.get_table_names(schema)}


def _table(inspector: Inspector, name: str, schema: str | None) -> dict[str, Any]:
    return {
        # In their order, and with types in full: length, collation, time zone, fraction of seconds.
        "columns": [_plain(each) for each in inspector.get_columns(name, schema)],
        "primary key": _plain(inspector.get_pk_constraint(name, schema)),
        "checks": _by_name(inspector.get_check_constraints(name, schema)),
        "unique constraints": _by_name(inspector.get_unique_constraints(name, schema)),
        "foreign keys": _by_name(inspector.get_foreign_keys(name, schema)),
        "indexes": _by_name(inspector.get_indexes(name, schema)),
        "options": _plain(inspector.get_table_options(name, schema)),
    }


def _by_name(found: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    return {str(each["name"]): _plain(each) for each in found}


def _plain(found: Mapping[str, Any]) -> dict[str, str]:
    return {name: repr(value) if name == "type" else str(value) for name, value in found.items()}
