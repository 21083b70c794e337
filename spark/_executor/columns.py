"""Checks that a DataFrame fits its target, before a row is read."""

from collections.abc import Collection, Iterable, Sequence

import pyarrow as pa
from sqlalchemy import Connection

from inbox_outbox_base.databases.loading import Loading
from inbox_outbox_base.databases.loading_values import Column, UniqueKey
from inbox_outbox_base.databases.results import Append, Upsert
from inbox_outbox_base.errors.spark import ColumnMismatch
from spark._options.settings import WriterSettings

from . import keys
from .destinations import Destination
from .sinks import RANK
from .spool import DIGEST, KEY

_OWN = (KEY, DIGEST, RANK)


def check_key(settings: WriterSettings, schema: pa.Schema) -> None:
    """Check that the key columns exist, and that their values have exactly one text form.

    Raises:
        ColumnMismatch: a column is missing, or its type has no unique text form.
    """
    for name in schema.names:
        if schema.names.count(name) > 1:
            raise ColumnMismatch(f"the DataFrame has two columns named {name!r}")
        if name in _OWN:
            raise ColumnMismatch(f"column {name!r}: the writer uses this name itself; rename the column")
    for name in settings.key:
        if name not in schema.names:
            raise ColumnMismatch(
                f"key={name!r}: the DataFrame has no such column, only {_listed(schema.names)}"
            )
        keys.check_type(name, schema.field(name).type)


def fitted(
    connection: Connection, database: Loading, destination: Destination, schema: pa.Schema
) -> list[Column]:
    """How each column of a target's rows is sent to the database.

    Raises:
        ColumnMismatch: the target lacks a column, requires one, or cannot hold one exactly.
    """
    settings = destination.settings
    results = settings.results
    if not isinstance(results, Append | Upsert):
        return [database.column(field, None) for field in schema]
    targets = {each.name: each for each in database.targets(connection, settings)}
    if not targets:
        raise ColumnMismatch(f"table={settings.target!r}: there is no such table")
    # A key without a column in the target is stored in the inbox only.
    optional = () if destination.is_strict else settings.key
    written = [field for field in schema if field.name in targets or field.name not in optional]
    for field in written:
        if field.name not in targets:
            raise ColumnMismatch(
                f"column {field.name!r}: table {settings.target} has no such column, only {_listed(targets)}"
            )
        if targets[field.name].generated:
            raise ColumnMismatch(
                f"column {field.name!r} of table {settings.target}: the database generates its values; leave "
                "it out, as with results=Append(columns=[...])"
            )
    for target in targets.values():
        if target.required and target.name not in schema.names:
            raise ColumnMismatch(
                f"column {target.name!r} of table {settings.target} is NOT NULL without a default, and the "
                "DataFrame does not have it"
            )
    if isinstance(results, Upsert):
        _check_upsert(results, schema, targets, settings.target)
        database.check_keys(connection, settings, targets.values(), [field.name for field in written])
    if settings.inbox == "table":
        _check_unique(settings, database.unique_keys(connection, settings))
    return [database.column(field, targets[field.name]) for field in written]


def _check_upsert(how: Upsert, schema: pa.Schema, targets: Collection[str], table: str | None) -> None:
    for name in (*how.key, how.version):
        if name not in schema.names:
            raise ColumnMismatch(f"Upsert: the DataFrame has no column {name!r}")
        if name not in targets:  # the writer's key need not be there
            raise ColumnMismatch(f"Upsert: table {table} has no column {name!r}")


def _check_unique(settings: WriterSettings, keys: Sequence[UniqueKey]) -> None:
    """Check that the target has a unique key that can be the inbox."""
    wanted = settings.results.key if isinstance(settings.results, Upsert) else settings.key
    found = [each for each in keys if each.columns == set(wanted)]
    if not found:
        raise ColumnMismatch(
            f"inbox='table': table {settings.target} has no unique key on exactly {_listed(wanted)}"
        )
    for each in found:
        if each.problem is not None:
            raise ColumnMismatch(
                f"inbox='table': the unique key {each.name!r} of table {settings.target} {each.problem}"
            )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names)
