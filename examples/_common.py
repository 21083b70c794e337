"""Shared by the examples: a database to run on, and a message delivered twice at the same time."""

import argparse
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from threading import Barrier
from typing import TypeVar

from sqlalchemy import URL, Engine, MetaData, create_engine, delete

from examples.embedded_postgres import EmbeddedPostgres
from inbox import migration, schema
from inbox.errors import InvalidOption

T = TypeVar("T")
CONSUMER = "examples"
"""The consumer of every example: its inbox rows are deleted before each run."""

PATIENCE = 30
"""Seconds after which an example gives up waiting for its other thread."""


@contextmanager
def prepared(about: str | None, business: MetaData) -> Iterator[Engine]:
    """The database given on the command line, with the inbox tables and empty business tables.

    Without ``--url`` it is an embedded PostgreSQL. The business tables are dropped at the end.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_url(parser)
    arguments = parser.parse_args()
    with database(url_of(parser, arguments)) as url:
        engine = create_engine(url)
        migration.migrate(engine)
        forget(engine, CONSUMER)
        business.drop_all(engine)
        business.create_all(engine)
        try:
            yield engine
        finally:
            business.drop_all(engine)
            engine.dispose()


def add_url(parser: argparse.ArgumentParser) -> None:
    """Add the option ``--url`` to a program."""
    about = "database to run on, as an SQLAlchemy URL (default: an embedded PostgreSQL)"
    parser.add_argument("--url", help=about)


def url_of(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> URL | None:
    """The URL on the command line; a wrong one ends the program."""
    try:
        return None if arguments.url is None else migration.database_url(arguments.url)
    except InvalidOption as error:
        parser.error(f"--{error}")


@contextmanager
def database(url: URL | None) -> Iterator[URL]:
    """The given database, or an embedded PostgreSQL while the block runs."""
    with ExitStack() as stack:
        yield url or stack.enter_context(EmbeddedPostgres()).url


def forget(engine: Engine, consumer: str) -> None:
    """Delete all inbox and ledger rows of a consumer, so that the same keys are new again."""
    tables = schema.tables()
    with engine.begin() as connection:
        for table in (tables.message, tables.ledger):
            connection.execute(delete(table).where(table.c.consumer == consumer))


def twice_at_once(deliver: Callable[[], T]) -> list[T]:
    """Call `deliver` in two threads that begin together; return both results."""
    begin = Barrier(2, timeout=PATIENCE)

    def one(_: int) -> T:
        begin.wait()
        return deliver()

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(one, range(2)))
