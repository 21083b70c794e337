"""A database's own description of its tables, in a form that can be compared."""

from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import Engine, Inspector, inspect, text


def snapshot(engine: Engine, schema: str | None = None) -> dict[str, Any]:
    """Everything that SQLAlchemy can reflect about every table, by the table's name."""
    inspector = inspect(engine)
    return {
        name: _table(inspector, name, schema) | {"numbers": _numbers(engine, name)}
        for name in inspector.get_table_names(schema)
    }


def _table(inspector: Inspector, name: str, schema: str | None) -> dict[str, Any]:
    return {
        # In their order, and with types in full: length, collation, time zone, fraction of seconds.
        "columns": [_unplaced(_plain(each), schema) for each in inspector.get_columns(name, schema)],
        "primary key": _plain(inspector.get_pk_constraint(name, schema)),
        "checks": _by_name(inspector.get_check_constraints(name, schema)),
        "unique constraints": _by_name(inspector.get_unique_constraints(name, schema)),
        "foreign keys": _by_name(inspector.get_foreign_keys(name, schema)),
        "indexes": _by_name(inspector.get_indexes(name, schema)),
        "options": _plain(inspector.get_table_options(name, schema)),
    }


def _numbers(engine: Engine, name: str) -> bool | None:
    """SQLite: whether a number is never used again (AUTOINCREMENT), which SQLAlchemy does not reflect."""
    if engine.dialect.name != "sqlite":
        return None
    made = text("SELECT sql FROM sqlite_master WHERE name = :name")
    with engine.connect() as connection:
        return "AUTOINCREMENT" in connection.execute(made, {"name": name}).scalar_one()


def _by_name(found: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    return {str(each["name"]): _plain(each) for each in found}


def _unplaced(column: dict[str, str], schema: str | None) -> dict[str, str]:
    """The same description in any schema: a sequence's name contains its schema."""
    return {name: value.replace(f"nextval('{schema}.", "nextval('") for name, value in column.items()}


def _plain(found: Mapping[str, Any]) -> dict[str, str]:
    return {name: repr(value) if name == "type" else str(value) for name, value in found.items()}
