"""PostgreSQL: the keys of a consumer, from one on, are a range of `inbox_message`, with a partition for each
day. All other keys are in the default partition, which is the table that was there before: no row is moved.

Before the range is attached, a constraint says that the default partition has none of these keys. To prove
it, the table is read beside open transactions; then ATTACH, beside which nobody can take a message, need not.

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

from inbox_outbox_base.databases.partitioning import KeyPartition, Partitioning
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
    announcements,
    commented,
    find_root,
)

_LONGEST_NAME = 63
_WAIT = "900ms"
"""How long others may have to queue behind a statement that waits for a table."""


@dataclass(frozen=True, slots=True)
class _Root:
    """The table `inbox_message`, as statements name it."""

    oid: int
    schema: str
    name: str
    has_partitions: bool
    is_ours: bool
    """Whether its partitions are ranges of consumers and keys, with our default one."""
    owner: str
    is_owned: bool
    role: str

    @property
    def default(self) -> str:
        """The name of the partition of all keys that have no other one."""
        return f"{self.name}_default"


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

    def consumers(self, connection: Connection, table: Table) -> dict[str, str]:
        rows = (_said(row) for row in connection.execute(commented(table)) if row.parent)
        return {said["consumer"]: said["first"] for said in rows if "end" not in said}

    def announced(self, connection: Connection, table: Table) -> dict[str, str]:
        rows = map(json.loads, connection.scalars(announcements(table)))
        return {said["consumer"]: said["first"] for said in rows}

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

    def announce(
        self, connection: Connection, table: Table, consumer: str, pick: Callable[[Connection], str]
    ) -> str:
        run = _Statements(connection, _root(connection, table))
        root, rule = run.root, _rule(consumer)
        default = root.default
        published = {"schema": root.schema, "names": [root.name, f"{root.name}_default"]}
        if publications := ", ".join(connection.scalars(PUBLICATIONS, published)):
            raise UnsafeDatabase(
                f"table {root.name}: its rows are in publication {publications}, whose subscribers do not "
                "have the new tables: drop it, and make it again with publish_via_partition_root"
            )
        if not root.has_partitions:
            _convert(run)
        elif not root.is_ours:
            raise UnsafeDatabase(
                f"table {root.name}: its partitions are not ranges of consumers and keys beside {default}"
            )
        run("LOCK TABLE {default} IN ACCESS EXCLUSIVE MODE", default=default)
        said = {"consumer": consumer, "first": pick(connection)}
        # As the server writes the bounds of the range, so that it recognizes them.
        its = "consumer IS NOT NULL AND key IS NOT NULL AND consumer = :consumer AND key >= :first"
        run(f"ALTER TABLE {{default}} DROP CONSTRAINT IF EXISTS {rule}", default=default)
        run(
            f"ALTER TABLE {{default}} ADD CONSTRAINT {rule} CHECK (NOT ({its})) NOT VALID",
            said,
            default=default,
        )
        run(
            f"COMMENT ON CONSTRAINT {rule} ON {{default}} IS :comment",
            {"comment": SIGN + json.dumps(said)},
            default=default,
        )
        return said["first"]

    def prove(self, connection: Connection, table: Table, consumer: str) -> None:
        run = _Statements(connection, _root(connection, table))
        connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
        run(f"ALTER TABLE {{default}} VALIDATE CONSTRAINT {_rule(consumer)}", default=run.root.default)

    def begin(
        self, connection: Connection, table: Table, consumer: str, first: str, ends: Mapping[str, str]
    ) -> None:
        run = _Statements(connection, _root(connection, table))
        its, said = _name(consumer), {"consumer": consumer, "first": first}
        run.create(its, said, " PARTITION BY RANGE (key)")
        begins = first
        for label, end in ends.items():
            _make(run, its, KeyPartition(consumer, _name(consumer, label), begins, end))
            begins = end
        bounds = "FROM (:consumer, :first) TO (:consumer, MAXVALUE)"
        run(f"ALTER TABLE {{root}} ATTACH PARTITION {{its}} FOR VALUES {bounds}", said, its=its)
        run(f"ALTER TABLE {{default}} DROP CONSTRAINT {_rule(consumer)}", default=run.root.default)

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

    def create(self, name: str, said: dict[str, str], more: str = "") -> None:
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
    run(
        "ALTER TABLE {parent} ATTACH PARTITION {its} FOR VALUES FROM (:first) TO (:end)",
        {"first": its.first, "end": its.end},
        parent=parent,
        its=its.name,
    )


def _convert(run: _Statements) -> None:
    """Make the table anew with partitions; the old one becomes the partition of all keys."""
    root, connection, old = run.root, run.connection, run.root.default
    run("LOCK TABLE {root} IN ACCESS EXCLUSIVE MODE")
    left = connection.execute(LEFT_BEHIND, {"oid": root.oid}).scalars().all()
    if left:
        raise UnsafeDatabase(
            f"table {root.name}: with partitions it would lose {', '.join(left)}: drop what you can do "
            "without, and make the rest again afterwards"
        )
    indexes = connection.execute(INDEXES, {"oid": root.oid}).all()
    for index in indexes:
        run.rename("INDEX", index.name, f"{index.name[: _LONGEST_NAME - 8]}_default")
    run.rename("TABLE", root.name, old)
    run("CREATE TABLE {root} (LIKE {old} INCLUDING ALL) PARTITION BY RANGE (consumer, key)", old=old)
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
    if not isinstance(said, dict) or said.keys() not in ({"consumer", "first"}, {"consumer", "first", "end"}):
        raise UnsafeDatabase(
            f"table {row.name}: somebody has changed its comment, which said what its keys are"
        )
    return said


def _root(connection: Connection, table: Table) -> _Root:
    return _Root(*connection.execute(find_root(table)).one())


def _rule(consumer: str) -> str:
    """The name of the constraint that says which keys are not in the default partition."""
    return _name(consumer, "later")


def _name(consumer: str, of: str = "") -> str:
    """The name of a consumer's table, or of a partition of it: what people can read of its name, and a hash
    that tells it from others."""
    readable = re.sub("[^a-z0-9]+", "_", consumer.lower())[:20].strip("_")
    its = hashlib.sha256(consumer.encode()).hexdigest()[:8]
    return "_".join(each for each in ("inbox_message", readable, its, of) if each)
