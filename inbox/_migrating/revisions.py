"""Our revisions, and the features whose tables they make.

Each revision names the features whose tables it makes or changes. The version table holds one number for all
tables that exist; the tables themselves show which features exist.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from alembic.script import Script, ScriptDirectory
from sqlalchemy import Connection, inspect

from inbox_outbox_base.checks.indexes import LackingIndex
from inbox_outbox_base.databases.registry import checking
from inbox_outbox_base.errors.inbox import InvalidOption, UnsupportedDatabase
from inbox_outbox_base.tables.inbox import FEATURES, tables

Features = frozenset[str]


def folder() -> Path:
    """The Alembic environment: in the wheel inside the package, in a checkout at the top.

    Raises:
        FileNotFoundError: this package is imported from an archive.
    """
    package = Path(__file__).parents[1]
    for found in (package / "migrations", package.parent / "migrations"):
        if found.is_dir():
            return found
    raise FileNotFoundError(
        f"{package / 'migrations'}: Alembic reads migrations from files, not from an archive; "
        "install inbox-outbox with pip to migrate"
    )


@cache
def revisions() -> tuple[Script, ...]:
    """All revisions, the oldest first."""
    return tuple(ScriptDirectory(str(folder())).walk_revisions())[::-1]


def names() -> list[str]:
    """The names of all revisions: "base", then the oldest first."""
    return ["base", *(step.revision for step in revisions())]


def position(revision: str) -> int:
    """How many revisions there are up to and including this one.

    Raises:
        InvalidOption: there is no such revision.
    """
    if revision == "head":
        return len(revisions())
    if revision not in names():
        raise InvalidOption(f"revision={revision!r}: expected head or one of {', '.join(names())}")
    return names().index(revision)


def checked(features: Sequence[str] | None) -> Features:
    """The selected features; None is all.

    Raises:
        InvalidOption: there is no such feature, or none is named.
    """
    if features is None:
        return frozenset(FEATURES)
    if isinstance(features, str) or not features or not all(each in FEATURES for each in features):
        raise InvalidOption(f"features={features!r}: expected some of {', '.join(FEATURES)}")
    return frozenset(features)


def there(connection: Connection, schema: str | None) -> Features:
    """The features of which at least one table exists."""
    found = inspect(connection)
    return frozenset(
        feature for feature, tables in FEATURES.items() if found.has_table(tables[0], schema=schema)
    )


def ups(start: int, end: int, present: Features, wanted: Features) -> Iterator[tuple[int, Script]]:
    """The steps up, with their numbers: from `start`, which the tables of `present` have reached, to `end`,
    for these tables and the wanted ones."""
    for number, step in enumerate(revisions()[:end], 1):
        is_done = number <= start and concerns(step, present)
        if not is_done and concerns(step, present | wanted):
            yield number, step


def undone(
    connection: Connection, schema: str | None, start: int, steps: Mapping[int, Script], present: Features
) -> dict[int, Script]:
    """Steps up to `start`, of these features, whose tables are missing: a migration has died where DDL cannot
    be rolled back.

    Raises:
        UnsupportedDatabase: some tables of a revision exist, and others do not; or a step is to make tables
            that exist. Nobody knows whose they are, so nothing is dropped.
    """
    found, missing = inspect(connection), dict[int, Script]()
    for number, step in enumerate(revisions(), 1):
        makes = step.module.makes
        there = [name for name in makes if found.has_table(name, schema=schema)]
        if number in steps and there:
            raise _half(step, f"{', '.join(there)} exist already")
        if number in steps or number > start or not concerns(step, present):
            continue
        if not there:
            missing[number] = step
        elif len(there) < len(makes):
            lacking = [name for name in makes if name not in there]
            raise _half(step, f"{', '.join(there)} exist, but not {', '.join(lacking)}")
    return missing


def unindexed(
    connection: Connection, schema: str | None, start: int, present: Features
) -> Iterator[LackingIndex]:
    """Indexes that tables of these features lack: a migration has died between CREATE TABLE and CREATE INDEX,
    where DDL cannot be rolled back. (A table's indexes are all made by the revision that makes the table.)"""
    declared = {table.name: table for table in tables(schema).metadata.sorted_tables}
    for step in revisions()[:start]:
        for name in step.module.makes if concerns(step, present) else ():
            yield from checking(connection.dialect.name).lacking_indexes(connection, declared[name])


def _half(step: Script, what: str) -> UnsupportedDatabase:
    return UnsupportedDatabase(
        f"of the tables of revision {step.revision}, {what}: somebody else has made or dropped them, or a "
        "migration died there and could not be rolled back; drop those that nobody uses, and migrate again"
    )


def downs(start: int, end: int, present: Features) -> Iterator[tuple[int, Script]]:
    """The steps down to `end`, each with the number to which it leads."""
    for number in range(start, end, -1):
        if concerns(revisions()[number - 1], present):
            yield number - 1, revisions()[number - 1]


def removals(start: int, gone: Features, left: Features) -> list[Script]:
    """The steps down that remove the tables of no remaining feature."""
    steps = revisions()[:start]
    return [step for step in reversed(steps) if concerns(step, gone) and not concerns(step, left)]


def concerns(step: Script, features: Iterable[str]) -> bool:
    """Whether a revision makes or changes tables of one of these features."""
    return not set(step.module.features).isdisjoint(features)
