"""The proxy of the fault kit sees every statement, however a driver sends it."""

import asyncio
import struct
from collections.abc import Callable, Iterator
from contextlib import closing
from io import StringIO
from typing import Any

import asyncmy
import asyncpg
import psycopg
import psycopg2
import pymysql
import pytest
from pymysql.constants.CLIENT import MULTI_STATEMENTS
from pymysql.cursors import SSCursor
from sqlalchemy import URL, text

from inbox_outbox.faults._address import address_of
from inbox_outbox.faults._postgresql import PostgreSQLWire
from inbox_outbox.faults._proxy import WireProxy
from tests.support.database import Database
from tests.support.on_servers import BOTH_MYSQL, on


class Heard:
    """Which statements came, and to which ones the server answered."""

    def __init__(self) -> None:
        self.came: list[str] = []
        self.answered: list[str] = []
        self.look: Callable[[], object] = lambda: None
        self.seen: list[object] = []

    def before(self, _: object, statement: str) -> tuple[bool, str]:
        """It may go on."""
        self.came.append(statement)
        return True, statement

    def after(self, running: str) -> bool:
        """It may go on."""
        self.answered.append(running)
        self.seen.append(self.look())
        return True


@pytest.fixture
def heard(database: Database) -> Iterator[tuple[Heard, URL]]:
    """What passes the proxy, and the proxy's address."""
    heard = Heard()
    address = address_of(database.url.render_as_string(hide_password=False))
    assert address.dialogue is not None
    proxy = WireProxy(address.connect, address.dialogue.wire, heard)
    yield heard, database.url.set(host="127.0.0.1", port=proxy.port)
    proxy.close()


@on("postgresql")
def test_the_ways_of_psycopg(heard: tuple[Heard, URL]) -> None:
    """Parameters, prepared statements, COPY, a pipeline, a cursor on the server, an error: each statement is
    seen once, when the server runs it, and so is the end of its answer. Encryption is declined."""
    said, url = heard
    address = url.set(drivername="postgresql").render_as_string(hide_password=False)
    add = "INSERT INTO x VALUES ($1)"
    with psycopg.connect(address, prepare_threshold=2) as connection:
        connection.execute("CREATE TEMP TABLE x (a INT)")
        for number in range(4):
            connection.execute("INSERT INTO x VALUES (%s)", (number,))
        with connection.cursor() as cursor, cursor.copy("COPY x FROM STDIN") as copy:
            copy.write_row((4,))
        with connection.pipeline():
            connection.execute("INSERT INTO x VALUES (%s)", (5,))
            connection.execute("INSERT INTO x VALUES (%s)", (6,))
        with connection.cursor("named") as named:
            assert named.execute("SELECT count(*) FROM x").fetchone() == (7,)
        connection.commit()
        with pytest.raises(psycopg.errors.UndefinedTable):
            connection.execute("SELECT * FROM nothing")
    assert said.came == [
        "BEGIN",
        "CREATE TEMP TABLE x (a INT)",
        *[add] * 4,
        "COPY x FROM STDIN",
        *[add] * 2,
        'DECLARE "named" CURSOR FOR SELECT count(*) FROM x',
        'FETCH FORWARD 1 FROM "named"',
        'CLOSE "named"',
        "COMMIT",
        "BEGIN",
        "SELECT * FROM nothing",
        "COMMIT",
    ]
    assert said.answered == said.came


def _asyncpg(address: str) -> list[str]:
    async def run() -> None:
        connection = await asyncpg.connect(address)
        await connection.execute("CREATE TEMP TABLE x (a INT)")
        async with connection.transaction():
            await connection.executemany("INSERT INTO x VALUES ($1)", [(1,), (2,)])
            await connection.copy_records_to_table("x", records=[(3,)])
            assert await connection.fetchval("SELECT count(*) FROM x") == 3
        await connection.close()

    asyncio.run(run())
    copy = 'COPY "x" FROM STDIN (FORMAT binary)'
    add = "INSERT INTO x VALUES ($1)"
    return ["CREATE TEMP TABLE x (a INT)", "BEGIN;", add, add, copy, "SELECT count(*) FROM x", "COMMIT;"]


def _psycopg2(address: str) -> list[str]:
    with closing(psycopg2.connect(address)) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TEMP TABLE x (a INT)")
        cursor.copy_expert("COPY x FROM STDIN", StringIO("1\n2\n"))
        cursor.execute("SELECT count(*) FROM x WHERE a < %s", (9,))
        assert cursor.fetchone() == (2,)
        connection.commit()
    query = "SELECT count(*) FROM x WHERE a < 9"
    return ["BEGIN", "CREATE TEMP TABLE x (a INT)", "COPY x FROM STDIN", query, "COMMIT"]


@on("postgresql")
@pytest.mark.parametrize("run", [_asyncpg, _psycopg2])
def test_the_ways_of_others(heard: tuple[Heard, URL], run: Callable[[str], list[str]]) -> None:
    """Statements that are prepared first, several in a row, COPY: each is seen once, and so is the end of its
    answer."""
    said, url = heard
    expected = run(url.set(drivername="postgresql").render_as_string(hide_password=False))
    assert [each.strip() for each in said.came] == expected
    assert said.answered == said.came


def _message(kind: str, body: bytes = b"") -> bytes:
    return kind.encode() + struct.pack("!I", len(body) + 4) + body


def test_copy_by_both_protocols() -> None:
    """The server ignores a Sync before COPY's data in the extended protocol, but answers one after COPY in
    the simple protocol, as asyncpg sends it. What follows finds its own answer in both cases."""
    wire = PostgreSQLWire()
    begun = struct.pack("!II", 8, 196608)
    query, ready = _message("Q", b"SELECT 1\0"), _message("Z", b"I")
    simple = [_message("Q", b"COPY x FROM STDIN\0"), _message("c") + _message("S")]
    prepared = _message("P", b"\0COPY x FROM STDIN\0\0\0") + _message("B", bytes(8))
    extended = [prepared + _message("E", bytes(5)) + _message("S"), _message("c") + _message("S")]
    for (first, data), answers in ((simple, [True, False]), (extended, [True])):
        sent = [piece.statement for piece in wire.from_client(begun + first) if piece.statement]
        assert sent == ["COPY x FROM STDIN"]
        assert not [piece for piece in wire.from_server(_message("G")) if piece.ends]
        assert not [piece for piece in wire.from_client(data) if piece.statement]
        assert [piece.statement for piece in wire.from_client(query)] == ["SELECT 1"]
        assert [piece.ends for piece in wire.from_server(ready * len(answers))] == answers
        assert [piece.ends for piece in wire.from_server(ready)] == [True]
        begun = b""


def _pymysql(place: dict[str, Any]) -> list[str]:
    with closing(pymysql.connect(**place, client_flag=MULTI_STATEMENTS)) as connection:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1; SET @a = 1; SELECT 2")
            while cursor.nextset():
                pass
        with connection.cursor(SSCursor) as unbuffered:
            unbuffered.execute("SELECT 1 UNION SELECT 2")
            assert len(unbuffered.fetchall()) == 2
        with connection.cursor() as cursor, pytest.raises(pymysql.err.ProgrammingError):
            cursor.execute("SELECT * FROM nothing")
        connection.commit()
    return ["SELECT 1; SET @a = 1; SELECT 2", "SELECT 1 UNION SELECT 2", "SELECT * FROM nothing", "COMMIT"]


def _asyncmy(place: dict[str, Any]) -> list[str]:
    async def run() -> None:
        async with asyncmy.connect(**place) as connection, connection.cursor() as cursor:
            await cursor.execute("SELECT %s", ("it",))
            await connection.commit()

    asyncio.run(run())
    return ["SELECT 'it'", "COMMIT"]


@pytest.mark.mysql
@on(*BOTH_MYSQL)
@pytest.mark.parametrize("run", [_pymysql, _asyncmy])
def test_the_ways_of_mysql(heard: tuple[Heard, URL], run: Callable[[dict[str, Any]], list[str]]) -> None:
    """Several statements at once, results that are read row by row, errors: each is seen once, and so is
    the end of its answer."""
    said, url = heard
    options = {"user": url.username, "password": url.password or "", "database": url.database}
    expected = run({"host": url.host, "port": url.port, **options})
    assert [each for each in said.came if not each.startswith("SET ")] == expected
    assert said.answered == said.came


@on("mariadb")
def test_an_answer_ends_with_its_last_result(heard: tuple[Heard, URL], database: Database) -> None:
    """Of several statements that are sent at once, the last one has been run by then."""
    said, url = heard
    engine = database.engine(isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text("CREATE TABLE x (a INT)"))
        said.look = lambda: connection.scalar(text("SELECT count(*) FROM x"))
        through = database.engine_at(url, connect_args={"client_flag": MULTI_STATEMENTS, "autocommit": True})
        with through.connect() as other:
            other.exec_driver_sql("INSERT INTO x VALUES (1); INSERT INTO x SELECT SLEEP(0.2)")
    assert said.seen[said.came.index("INSERT INTO x VALUES (1); INSERT INTO x SELECT SLEEP(0.2)")] == 2
