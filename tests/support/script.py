"""SQL scripts, run by the driver as a database's own client would run them."""

from contextlib import closing
from typing import Any

from pymysql.constants.CLIENT import MULTI_STATEMENTS

from tests.support.database import Database


def run_script(database: Database, script: str) -> None:
    """Run all statements of a script."""
    run = {"postgresql": _postgresql, "sqlite": _sqlite}.get(database.name, _mysql)
    options = {"client_flag": MULTI_STATEMENTS} if run is _mysql else {}
    engine = database.engine(connect_args=options)
    with closing(engine.raw_connection()) as connection:
        run(connection.driver_connection, script)
        connection.detach()
    engine.dispose()


def _postgresql(connection: Any, script: str) -> None:
    connection.rollback()
    connection.autocommit = True
    connection.execute(script)


def _sqlite(connection: Any, script: str) -> None:
    connection.executescript(script)
    connection.commit()


def _mysql(connection: Any, script: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(script)
        while cursor.nextset():
            pass
    connection.commit()
