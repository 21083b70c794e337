"""PostgreSQL: `inbox_message` is a list of consumers; the keys of one are ranges, a day each.

A comment on each table says whose it is and which keys it takes, also after it was detached. CREATE TABLE
... PARTITION OF would make every `accept` wait behind an open handler; CREATE TABLE and ATTACH do not.
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from sqlalchemy import Connection, Table, bindparam, text
from sqlalchemy.exc import DBAPIError

from inbox_outbox_base.databases.partitioning import MOST_MOVED, KeyPartition, Partitioning
from inbox_outbox_base.databases.taking import Borrowed
from inbox_outbox_base.errors import codes
from inbox_outbox_base.errors.inbox import InvalidOption, UnsafeDatabase

from .partitioning_statements import (
    INDEXES,
    LEFT_BEHIND,
    NO_LIMITS,
    NUMBER,
    PUBLICATIONS,
    RIGHTS,
    SIGN,
    commented,
    count_some,
    find_root,
)

_LONGEST_NAME = 63
_WAIT = "2s"
"""How long others may have to queue behind a statement that waits for a table."""
_LONGEST = "10s"
"""How long a statement may take that gives a consumer its first partitions: nobody can take a message."""


@dataclass(frozen=True, slots=True)
class _Root:
    """The table `inbox_message`, as statements name it."""

    oid: int
    schema: str
    name: str
    has_partitions: bool
    is_ours: bool
    """Whether its partitions are a list of consumers."""
    owner: str
    is_owned: bool
    role: str


class PostgreSQLPartitioning(Partitioning):
    """Declarative partitions at two levels. The lower one has no DEFAULT: DETACH CONCURRENTLY would refuse
    it."""

    def found(self, connection: Connection, table: Table) -> list[KeyPartition]:
        found = []
        for row in connection.execute(commented(table)):
            said = _said(row)
            if "end" not in said:
                continue
            state = "detached" if row.parent is None else "pending" if row.is_pending else "attached"
            rows = None if row.rows < 0 else round(row.rows)
            its = KeyPartition(said["consumer"], row.name, said["first"], said["end"], state, rows)  # type: ignore[arg-type]
            found.append(its)
        return sorted(found, key=lambda each: (each.consumer.encode(), each.end))

    def consumers(self, connection: Connection, table: Table) -> list[str]:
        rows = (_said(row) for row in connection.execute(commented(table)) if row.parent)
        return sorted((said["consumer"] for said in rows if "end" not in said), key=str.encode)

    def check_owner(self, connection: Connection, table: Table) -> None:
        root = _root(connection, table)
        if not root.is_owned:
            raise InvalidOption(
                f"engine: only the owner of {root.name}, {root.owner}, can make and drop partitions, and "
                f"this is {root.role}"
            )

    def keep_turn(self, connection: Connection) -> None:
        connection.execute(NO_LIMITS)

    def limit_waits(self, connection: Connection) -> None:
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{_WAIT}'")

    def begin(self, connection: Connection, table: Table, consumer: str, ends: Mapping[str, str]) -> None:
        root = _root(connection, table)
        run = _Statements(connection, root)
        connection.exec_driver_sql(f"SET LOCAL statement_timeout = '{_LONGEST}'")
        run("LOCK TABLE {root} IN ACCESS EXCLUSIVE MODE")
        if root.has_partitions and not root.is_ours:
            raise UnsafeDatabase(f"table {root.name}: its partitions are not a list of consumers")
        published = {"schema": root.schema, "names": [root.name, f"{root.name}_default"]}
        if publications := ", ".join(connection.scalars(PUBLICATIONS, published)):
            raise UnsafeDatabase(
                f"table {root.name}: its rows are in publication {publications}, whose subscribers do not "
                "have the new tables: drop it, and make it again with publish_via_partition_root"
            )
        if not root.has_partitions:
            _convert(run)
        given = {"consumer_": consumer, "most": MOST_MOVED + 1}
        if connection.execute(count_some(table), given).scalar_one() > MOST_MOVED:
            raise UnsafeDatabase(
                f"consumer={consumer!r}: it has more than {MOST_MOVED:,} rows in {root.name}, and nobody "
                "could take a message while they are moved: begin with a consumer's first message, or once "
                "most of its keys were purged"
            )
        its = _name(consumer)
        run.create(its, {"consumer": consumer}, " PARTITION BY RANGE (key)")
        first = None
        for label, end in ends.items():
            _make(run, its, KeyPartition(consumer, _name(consumer, label), first, end))
            first = end
        run(
            "WITH moved AS (DELETE FROM {root} WHERE consumer = :consumer RETURNING *) "
            "INSERT INTO {its} SELECT * FROM moved",
            {"consumer": consumer},
            its=its,
        )
        run(
            "ALTER TABLE {root} ATTACH PARTITION {its} FOR VALUES IN (:consumer)",
            {"consumer": consumer},
            its=its,
        )

    def make(self, connection: Connection, table: Table, new: KeyPartition) -> None:
        run = _Statements(connection, _root(connection, table))
        _make(run, _name(new.consumer), replace(new, name=_name(new.consumer, new.name)))

    def detach(self, connection: Connection, table: Table, partition: KeyPartition, wait: float) -> bool:
        run = _Statements(connection, _root(connection, table))
        its, part = _name(partition.consumer), partition.name
        with Borrowed(
            connection,
            lambda: connection.exec_driver_sql(f"SET lock_timeout = {max(1, round(wait * 1_000))}"),
            lambda: connection.exec_driver_sql("RESET lock_timeout"),
        ):
            # The first waits for every transaction that has used the table; the second for snapshots alone.
            detach = "ALTER TABLE {its} DETACH PARTITION {part}"
            is_pending = partition.state == "pending"
            if not is_pending and _in_time(partial(run, f"{detach} CONCURRENTLY", its=its, part=part)):
                return True
            is_pending = is_pending or self._is_pending(connection, table, partition)
            return is_pending and _in_time(partial(run, f"{detach} FINALIZE", its=its, part=part))

    def _is_pending(self, connection: Connection, table: Table, partition: KeyPartition) -> bool:
        found = {each.name: each.state for each in self.found(connection, table)}
        return found.get(partition.name) == "pending"

    def drop(self, connection: Connection, table: Table, partition: KeyPartition) -> None:
        _Statements(connection, _root(connection, table))("DROP TABLE {part}", part=partition.name)


class _Statements:
    """Runs statements about tables beside `inbox_message`, and with its owner."""

    def __init__(self, connection: Connection, root: _Root) -> None:
        self.connection = connection
        self.root = root

    def __call__(self, statement: str, values: dict[str, Any] | None = None, **names: str) -> Any:
        """Run it with the values written into it, because DDL has no parameters."""
        placed = {name: self.placed(each) for name, each in {"root": self.root.name, **names}.items()}
        given: list[Any] = [
            bindparam(name, value, literal_execute=True) for name, value in (values or {}).items()
        ]
        return self.connection.execute(text(statement.format(**placed)).bindparams(*given))

    def placed(self, name: str) -> str:
        """The quoted name of a table in the same schema, for `text`."""
        quote = self.connection.dialect.identifier_preparer.quote
        return f"{quote(self.root.schema)}.{quote(name)}".replace(":", "\\:")

    def quoted(self, name: str) -> str:
        """A quoted name, for a part of a statement."""
        return _escaped(self.connection.dialect.identifier_preparer.quote(name))

    def create(self, name: str, said: dict[str, str | None], more: str = "") -> None:
        """Create a table like `inbox_message`, and say in a comment what it is."""
        self(f"CREATE TABLE {{its}} (LIKE {{root}} INCLUDING ALL){more}", its=name)
        self("COMMENT ON TABLE {its} IS :comment", {"comment": SIGN + json.dumps(said)}, its=name)
        self.own(name)

    def rename(self, kind: str, name: str, to: str) -> None:
        """Rename a table or an index."""
        self(f"ALTER {kind} {{its}} RENAME TO {self.quoted(to)}", its=name)

    def number(self, name: str) -> int:
        """The oid of a table."""
        given = {"name": name, "schema": self.root.schema}
        return int(self.connection.execute(NUMBER, given).scalar_one())

    def own(self, name: str) -> None:
        """Give a new table to the owner of the others."""
        if self.root.role != self.root.owner:
            self(f"ALTER TABLE {{its}} OWNER TO {self.quoted(self.root.owner)}", its=name)


def _in_time(statement: Callable[[], object]) -> bool:
    """Run it; False if it has waited for too long."""
    try:
        statement()
    except DBAPIError as error:
        if not codes.ends_wait(error):
            raise
        return False
    return True


def _escaped(sql: str) -> str:
    """SQL with no placeholders in it."""
    return sql.replace(":", "\\:").replace("{", "{{").replace("}", "}}")


def _make(run: _Statements, parent: str, its: KeyPartition) -> None:
    said = {"consumer": its.consumer, "first": its.first, "end": its.end}
    run.create(its.name, said)
    begins, first = "MINVALUE", dict[str, Any]()
    if its.first is not None:
        begins, first = ":first", {"first": its.first}
    run(
        f"ALTER TABLE {{parent}} ATTACH PARTITION {{its}} FOR VALUES FROM ({begins}) TO (:end)",
        first | {"end": its.end},
        parent=parent,
        its=its.name,
    )


def _convert(run: _Statements) -> None:
    """Make the table anew with partitions; the old one becomes that of all other consumers."""
    root, connection = run.root, run.connection
    left = connection.execute(LEFT_BEHIND, {"oid": root.oid}).scalars().all()
    if left:
        raise UnsafeDatabase(
            f"table {root.name}: with partitions it would lose {', '.join(left)}: drop what you can do "
            "without, and make the rest again afterwards"
        )
    old = f"{root.name}_default"
    indexes = connection.execute(INDEXES, {"oid": root.oid}).all()
    for index in indexes:
        run.rename("INDEX", index.name, f"{index.name[: _LONGEST_NAME - 8]}_default")
    run.rename("TABLE", root.name, old)
    run("CREATE TABLE {root} (LIKE {old} INCLUDING ALL) PARTITION BY LIST (consumer)", old=old)
    run.own(root.name)
    new = run.number(root.name)
    names = {index.definition: index.name for index in indexes}
    for index in connection.execute(INDEXES, {"oid": new}).all():
        if index.name != names[index.definition]:
            run.rename("INDEX", index.name, names[index.definition])
    for right in connection.execute(RIGHTS, {"oid": new}).all():  # those of ALTER DEFAULT PRIVILEGES
        run(f"REVOKE {_escaped(right.name)} ON {{root}} FROM {_escaped(right.role)}")
    for right in connection.execute(RIGHTS, {"oid": root.oid}).all():
        option = " WITH GRANT OPTION" if right.is_grantable else ""
        run(f"GRANT {_escaped(right.name)} ON {{root}} TO {_escaped(right.role)}{option}")
    run("ALTER TABLE {root} ATTACH PARTITION {old} DEFAULT", old=old)


def _said(row: Any) -> dict[str, Any]:
    """What the comment on a table says."""
    try:
        said = json.loads(row.comment)
    except ValueError:
        said = None
    if not isinstance(said, dict) or said.keys() not in ({"consumer"}, {"consumer", "first", "end"}):
        raise UnsafeDatabase(
            f"table {row.name}: somebody has changed its comment, which said what its keys are"
        )
    return said


def _root(connection: Connection, table: Table) -> _Root:
    return _Root(*connection.execute(find_root(table)).one())


def _name(consumer: str, of: str = "") -> str:
    """The name of a consumer's table, or of a partition of it: what people can read of its name, and a hash
    that tells it from others."""
    readable = re.sub("[^a-z0-9]+", "_", consumer.lower())[:20].strip("_")
    its = hashlib.sha256(consumer.encode()).hexdigest()[:8]
    return "_".join(each for each in ("inbox_message", readable, its, of) if each)
