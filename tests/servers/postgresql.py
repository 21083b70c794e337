"""PostgreSQL: each test has its own database, a copy of a template if it needs tables."""

import secrets
from collections.abc import Callable
from uuid import uuid4

from sqlalchemy import URL, create_engine, text

from examples.embedded_postgres import EmbeddedPostgres
from tests.servers import docker, environment
from tests.servers.copies import Copies
from tests.servers.postgresql_template import PostgreSQLTemplate
from tests.servers.server import Missing, Server, first_of

DRIVER = "postgresql+psycopg"
SETTINGS = {"max_connections": "200", "fsync": "off"}  # tests kill processes, not machines


def find() -> Server | Missing:
    """PostgreSQL from the environment, Docker or the wheel."""
    password = secrets.token_hex()
    image = docker.Image(
        name="postgres:17",
        port=5432,
        environment={"POSTGRES_PASSWORD": password},
        command=["postgres", *(f"-c{name}={value}" for name, value in SETTINGS.items())],
        url=URL.create(DRIVER, "postgres", password, database="postgres"),
    )
    return first_of(
        [
            lambda: environment.server("postgresql", _server),
            lambda: docker.server(image, _server),
            _from_wheel,
        ]
    )


def _from_wheel() -> Server:
    embedded = EmbeddedPostgres(SETTINGS)
    return _server(embedded.url, "wheel", embedded.close, embedded.restart)


def _server(
    url: URL, origin: str, stop: Callable[[], None], restart: Callable[[], None] | None = None
) -> Server:
    url = url.set(drivername=DRIVER)
    admin = create_engine(url, isolation_level="AUTOCOMMIT", pool_pre_ping=True)

    def run(statement: str) -> None:
        with admin.connect() as connection:
            connection.execute(text(statement))

    def fresh(template: URL) -> URL:
        database = f"inbox_outbox_test_{uuid4().hex}"
        run(f'CREATE DATABASE {database} TEMPLATE "{template.database}"')
        return url.set(database=database)

    def copied(template: URL) -> PostgreSQLTemplate:
        return PostgreSQLTemplate(lambda: fresh(template))

    nothing = url.set(database="template1")
    empty = Copies(copied, lambda gone: run(f"DROP DATABASE {gone.database} WITH (FORCE)"))
    copies = Copies(copied, empty.give_back)

    def stop_server() -> None:
        copies.close()
        empty.close()
        admin.dispose()
        stop()

    with admin.connect() as connection:
        version = connection.exec_driver_sql("SHOW server_version").scalar_one()
    return Server(
        name="postgresql",
        origin=origin,
        version=version,
        admin_url=url,
        fresh_database=lambda: fresh(nothing),
        new_database=lambda: empty.take(nothing),
        drop_database=copies.give_back,
        copy_database=copies.take,
        restart=restart,
        stop=stop_server,
    )
