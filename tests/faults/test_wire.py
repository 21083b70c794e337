"""The proxy of the fault kit sees every statement, however a driver sends it."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import asyncmy
import psycopg
import pymysql
import pytest
from pymysql.constants.CLIENT import MULTI_STATEMENTS
from pymysql.cursors import SSCursor
from sqlalchemy import URL

from inbox_outbox.faults._address import address_of
from inbox_outbox.faults._proxy import WireProxy
from tests.support.database import Database
from tests.support.on_servers import BOTH_MYSQL, on


class Heard:
    """Which statements came, and to which ones the server answered."""

    def __init__(self) -> None:
        self.came: list[str] = []
        self.answered: list[str] = []

    def before(self, _: object, statement: str) -> tuple[bool, str]:
        """It may go on."""
        self.came.append(statement)
        return True, statement

    def after(self, running: str) -> bool:
        """It may go on."""
        self.answered.append(running)
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
    text = url.set(drivername="postgresql").render_as_string(hide_password=False)
    add = "INSERT INTO x VALUES ($1)"
    with psycopg.connect(text, prepare_threshold=2) as connection:
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
