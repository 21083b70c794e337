"""Tenants that each have a schema in one PostgreSQL database do not wait for each other's keys."""

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.orm import Session, sessionmaker

import inbox
import outbox
from inbox import Inbox, Verdict
from inbox.errors import TablesMissing
from inbox.schema import metadata
from tests.exactly_once.test_lost_commit import is_commit
from tests.support import accounts
from tests.support.database import Database
from tests.support.proxy import TcpProxy

KEY = "order-1"
NAMES = ("tenant_a", "tenant \"b' $1%")
NEW, DUPLICATE, IN_FLIGHT = Verdict.NEW, Verdict.DUPLICATE, Verdict.IN_FLIGHT
Tenants = Callable[[Database, str], Engine]


def translated(database: Database, name: str) -> Engine:
    """An engine whose `schema_translate_map` leads to the tenant's schema."""
    return database.engine().execution_options(schema_translate_map={None: name})


def on_a_path(database: Database, name: str) -> Engine:
    """An engine whose `search_path` leads to the tenant's schema."""
    quoted = '"' + name.replace('"', '""') + '"'
    return database.engine(connect_args={"options": "-c search_path=" + quoted.replace(" ", "\\ ")})


@pytest.fixture
def tenants(postgres: Database) -> Database:
    """A database with two more schemas that have the tables."""
    for name in NAMES:
        with postgres.engine().begin() as connection:
            quoted = connection.dialect.identifier_preparer.quote(name)
            connection.exec_driver_sql(f"CREATE SCHEMA {quoted}")
        with translated(postgres, name).begin() as connection:
            metadata.create_all(connection)
    return postgres


Take = Callable[[Inbox, Connection], Verdict]
TAKES: list[Take] = [
    lambda inbox, connection: inbox.accept(connection, KEY),
    lambda inbox, connection: inbox.accept_many(connection, [KEY])[0],
]


@pytest.mark.parametrize("engine_of", [translated, on_a_path])
@pytest.mark.parametrize("take", TAKES, ids=["single", "batch"])
def test_a_key_in_flight_in_another_schema(tenants: Database, engine_of: Tenants, take: Take) -> None:
    """A key in flight in one schema is NEW in another, without a wait; in the same schema it is IN_FLIGHT,
    and later a DUPLICATE."""
    first, second = (engine_of(tenants, name) for name in NAMES)
    inbox, patient = Inbox("orders", wait=0), Inbox("orders", wait=3)
    with first.connect() as one, second.connect() as other, first.connect() as same:
        assert take(inbox, one) is NEW
        assert take(patient, other) is NEW
        assert take(inbox, same) is IN_FLIGHT
        one.commit()
        other.commit()
        assert take(inbox, same) is DUPLICATE


def test_a_path_that_changes(tenants: Database) -> None:
    """A connection that switches between tenants takes each tenant's keys, even after its statements are
    prepared."""
    inbox = Inbox("orders", wait=0)
    with tenants.engine().connect() as connection:
        for number in range(8):
            for name in ("tenant_a", "public"):
                connection.execute(text(f"SET search_path TO {name}"))
                assert inbox.accept(connection, f"order-{number}") is NEW
                assert inbox.accept_many(connection, [f"order-{number}"]) == [DUPLICATE]
        connection.commit()


@pytest.mark.parametrize("how", ["path", "map"])
def test_a_policy_and_a_number_of_buckets_for_each_tenant(tenants: Database, how: str) -> None:
    """Connections of one pool that switch between tenants store the policy of each, and publish to the
    buckets that it has. (PostgreSQL tells of a changed `search_path` from version 18 on.)"""
    engine = tenants.engine(pool_size=1, max_overflow=0)
    names = ("tenant_a", "public")
    outbox.set_bucket_count(engine, 7, schema="tenant_a")
    for number in range(3):
        for name in names:
            with engine.connect() as connection:
                if how == "path":
                    connection.execute(text(f"SET search_path TO {name}"))
                else:
                    connection = connection.execution_options(schema_translate_map={None: name})
                assert Inbox("orders", retention=86_400).accept(connection, f"{number}") is NEW
                outbox.Outbox().publish(connection, "orders", b"", key=KEY)
                connection.commit()
    for name, messages in zip(names, (3, None), strict=True):  # None: it has only one generation
        assert [each.consumer for each in inbox.status(engine, schema=name) if each.policy] == ["orders"]
        found = outbox.status(engine, schema=name)
        assert (found.pending, found.stray, found.generations[-1].messages) == (3, 0, messages)


def test_a_lost_commit_of_a_session_with_a_map_of_its_own(tenants: Database) -> None:
    """The check after a lost COMMIT reads the tenant's table."""
    accounts.make(tenants.engine())
    options: dict[str, Any] = {"schema_translate_map": {None: NAMES[0]}}
    with TcpProxy(str(tenants.url.host), tenants.url.port or 0) as proxy:
        url = tenants.url.set(host="127.0.0.1", port=proxy.port)
        engine = create_engine(url, connect_args={"sslmode": "disable"})
        source: sessionmaker[Session] = sessionmaker(engine, execution_options=options)
        with Inbox("orders").transaction(source, "warm-up"):
            pass
        proxy.cut_on(is_commit, forward=True)
        with Inbox("orders").transaction(source, KEY) as work:
            assert work.is_new
        assert proxy.was_cut.is_set()
        engine.dispose()


def test_a_schema_without_the_tables(postgres: Database) -> None:
    """A schema without the tables raises `TablesMissing`, also for batches, whose first statement is the
    lock."""
    engine = translated(postgres, "nowhere")
    for take in TAKES:
        with engine.connect() as connection, pytest.raises(TablesMissing):
            take(Inbox("orders"), connection)
