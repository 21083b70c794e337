"""MySQL and MariaDB: rows are sent by LOAD DATA LOCAL if the server allows it, else by INSERTs of many rows.
They always go to a temporary table: LOCAL turns errors into warnings, so the table must hold any value.

ON DUPLICATE KEY UPDATE leaves the row of a taken key unchanged, and locks it exclusively. IGNORE would share
the lock, and of several waiters for one key all but one would deadlock.
"""

import math
import tempfile
from collections.abc import Collection, Iterable, Iterator, Sequence
from hashlib import blake2b
from itertools import chain, repeat
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pymysql.charset import charset_by_name
from sqlalchemy import Connection, Select, Table, case
from sqlalchemy.dialects.mysql import Insert
from sqlalchemy.exc import DBAPIError
from sqlalchemy.schema import CreateTable

from inbox_outbox_base.databases import arrow
from inbox_outbox_base.databases.loading import Loading, is_newer, outside
from inbox_outbox_base.databases.loading_values import (
    Column,
    KnownKeys,
    TakenKeys,
    Target,
    UniqueKey,
    Write,
    WriterClaim,
)
from inbox_outbox_base.databases.results import Upsert
from inbox_outbox_base.errors import codes
from inbox_outbox_base.errors.inbox import InvalidOption
from inbox_outbox_base.errors.spark import ColumnMismatch, InvalidRow
from inbox_outbox_base.tables.inbox import Tables

from . import loading_statements as sql
from . import types
from .dialect import TAKEN, told
from .taking import random_token

_LOCAL_FILES = 128
"""The protocol's flag CLIENT_LOCAL_FILES."""

_TRANSACTIONAL = {"innodb", "rocksdb"}
"""Engines whose rows commit with those of the inbox."""

_NO_TABLE = 1146

_SAMPLE = 500
"""Keys to look up first: if none of them exists, hardly any of the others does."""


class MySQLLoading(Loading):
    """LOAD DATA into temporary tables, then SQL."""

    connect_args = MappingProxyType(
        {"program_name": "inbox-outbox spark", "connect_timeout": 10, "local_infile": True}
    )
    taken = TAKEN
    temporary = MappingProxyType({"mysql_engine": "InnoDB", "mariadb_engine": "InnoDB"})
    locks_to_see = True

    def __init__(self) -> None:
        self._loads = False
        self._probes = True
        self._server = types.Server(30, "utf8mb4_bin")
        self._largest = 0

    def guard(self, connection: Connection, write: Write) -> None:
        lock_wait = max(1, math.ceil(write.lock_timeout))
        connection.execute(sql.LIMITS, {"lock_wait": lock_wait, "idle": max(60, lock_wait)})
        is_mariadb = bool(getattr(connection.dialect, "is_mariadb", False))
        if write.query_timeout:
            limit = sql.STATEMENT_LIMIT[is_mariadb]
            connection.execute(limit, {"milliseconds": math.ceil(write.query_timeout * 1000)})
        server = connection.execute(sql.SERVER).one()
        self._largest = server.largest
        driver: Any = connection.connection.driver_connection
        if charset_by_name(server.charset).encoding != driver.encoding:
            raise InvalidOption(
                f"sessionInitStatement: character_set_client is {server.charset}, but the driver sends text "
                f"in {driver.encoding}"
            )
        self._loads = bool(server.loads and driver.client_flag & _LOCAL_FILES)
        self.transport = "load data" if self._loads else "insert"
        # At that level a SELECT also locks gaps: others would wait for more than the probe saves.
        self._probes = write.isolation_level != "SERIALIZABLE"
        is_utf8 = server.collation.startswith("utf8mb4_")
        self._server = types.Server(38 if is_mariadb else 30, server.collation if is_utf8 else "utf8mb4_bin")

    def place(self, connection: Connection, write: Write) -> str:
        where = {"schema": write.table_schema, "name": write.table}
        found = connection.execute(sql.PLACE, where).one_or_none()
        if found is None:
            return ".".join(part for part in (write.table_schema, write.table) if part)
        if found.engine is not None and found.engine.lower() not in _TRANSACTIONAL:
            raise outside(found.place, f"its engine is {found.engine}, not InnoDB")
        return str(found.place)

    def lock_types(self, connection: Connection, write: Write) -> None:
        quote = connection.dialect.identifier_preparer.quote_identifier
        name = ".".join(quote(part) for part in (write.table_schema, write.table) if part)
        try:
            connection.exec_driver_sql(f"SELECT 1 FROM {name} LIMIT 0")  # noqa: S608 - quoted names
        except DBAPIError as error:
            # A role that may only insert cannot; nor is there a lock for a table that is not there.
            if not codes.is_denied(error) and codes.code_of(error) != _NO_TABLE:
                raise

    def targets(self, connection: Connection, write: Write) -> list[Target]:
        where = {"schema": write.table_schema, "name": write.table}
        rows = connection.execute(sql.TARGETS, where).all()
        counted = {row.name for row in rows if "auto_increment" in row.extra.lower()}
        return [
            types.MySQLTarget(
                row.name,
                row.kind,
                row.full,
                row.scale,
                not (row.nullable or row.has_default or row.is_generated or row.name in counted),
                bool(row.is_generated),
                bool(row.nullable),
                row.length or None,
                row.digits,
                row.collation,
                row.name in counted,
            )
            for row in rows
        ]

    def check_keys(
        self, connection: Connection, write: Write, targets: Iterable[Target], written: Collection[str]
    ) -> None:
        """ON DUPLICATE KEY UPDATE names no key: it would react to any unique key, and without a unique key
        insert the same row repeatedly."""
        how = write.results
        if not isinstance(how, Upsert):
            return
        keys = self.unique_keys(connection, write)
        others = [each for each in keys if each.columns != set(how.key)]
        if len(others) == len(keys):
            raise ColumnMismatch(
                f"Upsert(key={how.key!r}): the table has no unique key on exactly these columns"
            )
        if any(each.name == how.version and each.kind == "enum" for each in targets):
            raise ColumnMismatch(
                f"Upsert(version={how.version!r}): the column is an enum, whose labels the server would "
                "compare as text; use a number or a time"
            )
        counters = {each.name for each in targets if isinstance(each, types.MySQLTarget) and each.counted}
        for each in others:
            if not each.columns & (counters - {*written}):
                raise ColumnMismatch(
                    f"Upsert(key={how.key!r}): the table's unique key {each.name!r} could match a row as well"
                )

    def unique_keys(self, connection: Connection, write: Write) -> list[UniqueKey]:
        indexes: dict[str, list[Any]] = {}
        for part in connection.execute(sql.UNIQUE, {"schema": write.table_schema, "name": write.table}):
            indexes.setdefault(part.name, []).append(part)
        return [
            UniqueKey(
                name, frozenset(part.part if part.is_whole else None for part in parts), _problem(parts)
            )
            for name, parts in indexes.items()
        ]

    def column(self, field: pa.Field, target: Target | None) -> Column:
        assert target is None or isinstance(target, types.MySQLTarget)  # noqa: S101 - from targets()
        return types.column(field, target, self._server)

    def note(self, connection: Connection, tables: Tables, row: dict[str, Any]) -> int | None:
        return connection.execute(sql.begin(tables), row).lastrowid or None

    def take(self, connection: Connection, claim: WriterClaim, given: pa.Table) -> TakenKeys:
        keys = given.column("key").combine_chunks()
        known = self._known(connection, claim, keys)
        unknown = given.filter(pc.invert(_among(keys, known.owners))) if known.owners else given
        if len(unknown):
            self._give(connection, unknown)
            parameters = {"consumer": claim.consumer, "claim": claim.id}
            token, first = random_token(), pc.min(unknown.column("key")).as_py()
            given_too = parameters | {"token": token, "first": first}
            if connection.execute(sql.add(claim.tables), given_too).lastrowid != token:
                known.add(connection.execute(sql.others(claim.tables), parameters))
        return TakenKeys(pc.invert(_among(keys, known.owners)), known)

    def _known(self, connection: Connection, claim: WriterClaim, keys: pa.StringArray) -> KnownKeys:
        """Some of the keys taken before, which need no lock then; all of them, if there are many."""
        if not self._probes:
            return KnownKeys()
        step = max(1, len(keys) // _SAMPLE)
        sample = keys.take(pa.array(range(0, len(keys), step)))
        known = self.found(connection, claim.tables, claim.consumer, sample)
        if known.owners and step > 1:
            known = self.found(connection, claim.tables, claim.consumer, keys)
        return known

    def found(self, connection: Connection, tables: Tables, consumer: str, keys: pa.StringArray) -> KnownKeys:
        parameters: dict[str, Any] = {"consumer": consumer}
        if len(keys) <= 2 * _SAMPLE:
            statement = sql.find_few(tables)
            parameters["keys"] = keys.to_pylist()
        else:
            statement = sql.find_given(tables)
            self._give(connection, pa.table({"key": keys}))
        known = KnownKeys()
        known.add(connection.execute(statement, parameters))
        return known

    def _give(self, connection: Connection, keys: pa.Table) -> None:
        """The keys, and their digests if they have any, as a temporary table."""
        # The keys given before these may have left the table there.
        connection.execute(sql.FORGET)
        connection.execute(CreateTable(sql.GIVEN))
        self.load(connection, sql.GIVEN.name, None, keys, 20_000)

    def load(
        self, connection: Connection, name: str, schema: str | None, rows: pa.Table, batch_size: int
    ) -> None:
        quote = connection.dialect.identifier_preparer.quote_identifier
        relation = ".".join(quote(part) for part in (schema, name) if part)
        columns = [quote(column) for column in rows.column_names]
        batches = rows.to_batches(max_chunksize=batch_size)
        if self._loads:
            _load_data(connection, relation, columns, rows.schema, batches)
            return
        places = ", ".join(["%s"] * len(columns))
        added = f"INSERT INTO {relation} ({', '.join(columns)}) VALUES ({places})"  # noqa: S608 - quoted names
        for batch in batches:
            if 2 * batch.nbytes > self._largest:  # in a statement, a character can become two
                _check_sizes(connection, added, batch, self._largest)
            connection.exec_driver_sql(added, list(_tuples(batch)))

    def add(
        self,
        connection: Connection,
        target: Table,
        names: Sequence[str],
        rows: Select[Any],
        key: Sequence[str],
    ) -> int:
        # ON DUPLICATE KEY cannot say which key it means, and IGNORE turns errors into warnings.
        missing = sql.add_missing(target, names, rows, key)
        again = sql.add_missing(target, names, sql.one_of_each(rows, names, key), key)
        # From the second time on: the table may take two of the keys for the same key.
        attempts = chain([missing], repeat(again))
        return self.beside_others(connection, lambda: connection.execute(next(attempts)).rowcount)

    def upsert(
        self, connection: Connection, target: Table, names: Sequence[str], rows: Select[Any], how: Upsert
    ) -> int:
        added = Insert(target).from_select(list(names), rows)
        newer = is_newer(added.inserted[how.version], target.c[how.version])
        # Assignments see earlier assignments, so the version goes last.
        changed = [name for name in names if name not in (*how.key, how.version)]
        values = [
            (name, case((newer, added.inserted[name]), else_=target.c[name]))
            for name in (*changed, how.version)
        ]
        connection.execute(added.on_duplicate_key_update(values))
        return 0  # the server counts an unchanged row like an inserted one

    def upsert_counted(
        self, connection: Connection, target: Table, names: Sequence[str], rows: Select[Any], how: Upsert
    ) -> int:
        added = self.add(connection, target, names, rows, how.key)
        # The rows just inserted are not newer than themselves.
        return added + connection.execute(sql.update_older(target, names, rows, how)).rowcount

    def clear_temporary(self, connection: Connection, name: str, *, is_large: bool) -> None:
        # Without TEMPORARY, it would commit.
        quote = connection.dialect.identifier_preparer.quote_identifier
        connection.exec_driver_sql(f"DROP TEMPORARY TABLE IF EXISTS {quote(name)}")

    def slot(self, connection: Connection, write: Write) -> bool:
        # These locks belong to the server, not the database, and their names have at most 64 characters.
        scope = f"{connection.engine.url.database}\0{write.consumer}".encode()
        name = f"inbox-outbox {blake2b(scope, digest_size=12).hexdigest()}"
        slots = range(write.max_connections or 0)
        return any(connection.execute(sql.SLOT, {"name": f"{name} {slot}"}).scalar() for slot in slots)


def _problem(parts: list[Any]) -> str | None:
    return "allows NULL, and NULLs are distinct" if any(part.is_nullable for part in parts) else None


def _among(keys: pa.StringArray, some: Any) -> pa.BooleanArray:
    return pc.is_in(keys, pa.array(list(some), pa.string()))


def _load_data(
    connection: Connection,
    relation: str,
    columns: list[str],
    schema: pa.Schema,
    batches: list[pa.RecordBatch],
) -> None:
    """Run LOAD DATA LOCAL, and check that every row arrived and that there was no warning."""
    places, unpacked = list(columns), []
    for number, field in enumerate(schema):
        if pa.types.is_binary(field.type):
            places[number] = f"@inbox_{number}"
            unpacked.append(f"{columns[number]} = unhex(@inbox_{number})")
    assigned = f" SET {', '.join(unpacked)}" if unpacked else ""
    with tempfile.NamedTemporaryFile(prefix="inbox-outbox-") as file:
        for batch in batches:
            file.write(arrow.lines(batch, arrow.hexadecimal))
        file.flush()
        # In hexadecimal, the characters mean the same in every sql_mode.
        answer = connection.exec_driver_sql(
            f"LOAD DATA LOCAL INFILE %s INTO TABLE {relation} CHARACTER SET utf8mb4 "
            "FIELDS TERMINATED BY X'09' ESCAPED BY X'5C' LINES TERMINATED BY X'0A' "
            f"({', '.join(places)}){assigned}",
            (file.name,),
            execution_options={"preserve_rowcount": True},
        )
    if connection.exec_driver_sql("SHOW COUNT(*) WARNINGS").scalar():
        warning = connection.exec_driver_sql("SHOW WARNINGS LIMIT 1").first()
        said = told("warning", warning.Code, warning.Message) if warning else "a value was changed"
        raise InvalidRow(f"LOAD DATA: {said}")
    rows = sum(batch.num_rows for batch in batches)
    if answer.rowcount != rows:
        raise InvalidRow(f"LOAD DATA: {answer.rowcount} of {rows} rows were loaded")


def _check_sizes(connection: Connection, added: str, batch: pa.RecordBatch, largest: int) -> None:
    """Refuse a row that the server would not receive: it closes the connection instead of saying so."""
    driver: Any = connection.connection.driver_connection
    cursor = driver.cursor()
    for row in _tuples(batch):
        lengths = [len(value) if isinstance(value, str | bytes) else 0 for value in row]
        if 4 * sum(lengths) > largest:
            size = len(cursor.mogrify(added, row).encode(errors="surrogateescape"))
            if size >= largest:
                name = batch.column_names[lengths.index(max(lengths))]
                raise InvalidRow(
                    f"column {name!r}: with it the row's statement has {size:,} bytes, and the server's "
                    f"max_allowed_packet is {largest:,}"
                )


def _tuples(batch: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
    """Rows as parameters: every value except plain numbers and text is sent as text, so that no digit is
    lost."""
    plain = (pa.types.is_integer, pa.types.is_floating, pa.types.is_string, pa.types.is_binary)
    columns = [
        column if any(fits(column.type) for fits in plain) else column.cast(pa.string())
        for column in batch.columns
    ]
    return zip(*(column.to_pylist() for column in columns), strict=True)
