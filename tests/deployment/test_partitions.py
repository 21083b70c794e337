"""Tables that a user has partitioned work like the plain ones."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, delete, select, text, update
from sqlalchemy.exc import OperationalError
from sqlalchemy.schema import CreateSchema, DropSchema

import inbox
import outbox
from inbox import Inbox, SqlStore, StatusInbox, Verdict
from inbox.schema import tables
from inbox_outbox_base.databases.postgresql.taking_statements import begin_purge, delete_batch
from inbox_outbox_base.databases.registry import relaying
from inbox_outbox_base.databases.taking_statements import Aging
from outbox import Message, Outbox, Relay
from outbox.errors import InvalidOption
from tests.support.database import Database
from tests.support.on_servers import on
from tests.support.outbox_publishers import Recorder
from tests.support.spark.writes import batch, make_result, taken, write

MESSAGE, LEDGER = tables().message, tables().ledger
LAYOUTS = {
    "hash": ("HASH (key)", [f"WITH (MODULUS 4, REMAINDER {number})" for number in range(4)]),
    "list": ("LIST (consumer)", ["IN ('mail')", "IN ('payments')"]),
    "range": ("RANGE (key)", ["FROM (MINVALUE) TO ('m')", "FROM ('m') TO (MAXVALUE)"]),
}
LONG_AGO = datetime.now(UTC) - timedelta(days=100)
KEYS = sorted(f"{'az'[number % 2]}{number}" for number in range(40))
"""Some for each partition of every layout."""
mail, payments = Inbox("mail"), Inbox("payments", retention=timedelta(days=365))


OF_OUTBOX = {
    "hash": ("HASH (bucket)", [f"WITH (MODULUS 4, REMAINDER {number})" for number in range(4)]),
    "list": ("LIST (bucket)", ["IN (0)", "DEFAULT"]),
    "range": ("RANGE (bucket)", ["FROM (MINVALUE) TO (30)", "FROM (30) TO (MAXVALUE)"]),
}


@pytest.fixture(params=LAYOUTS)
def engine(request: pytest.FixtureRequest, postgres: Database) -> Engine:
    """A database with such a table."""
    engine = make_result(postgres)
    with engine.begin() as connection:
        partition(connection, "inbox_message", "part", *LAYOUTS[request.param])
    return engine


def partition(connection: Connection, table: str, part: str, by: str, partitions: list[str]) -> None:
    """Make a table, which is empty, anew."""
    connection.execute(text(f"ALTER TABLE {table} RENAME TO plain"))
    connection.execute(text(f"CREATE TABLE {table} (LIKE plain INCLUDING ALL) PARTITION BY {by}"))
    if table == "outbox_message":
        connection.execute(
            text("ALTER SEQUENCE outbox_message_sequence_seq OWNED BY outbox_message.sequence")
        )
    connection.execute(text("DROP TABLE plain"))
    for number, values in enumerate(partitions):
        values = values if values == "DEFAULT" else f"FOR VALUES {values}"
        connection.execute(text(f"CREATE TABLE {part}{number} PARTITION OF {table} {values}"))


def test_a_key_is_taken_once(engine: Engine) -> None:
    """Duplicates are found by single messages and by batches."""
    for expected in (Verdict.NEW, Verdict.DUPLICATE):
        with engine.begin() as connection:
            assert {mail.accept(connection, key) for key in KEYS} == {expected}
            assert {*payments.accept_many(connection, KEYS)} == {expected}


def test_a_purge_deletes_what_is_old(engine: Engine) -> None:
    """Partitions have rows at the same places: those of another consumer, or of another age, stay."""
    old = KEYS[::2]
    with engine.begin() as connection:
        payments.accept_many(connection, KEYS)
        mail.accept_many(connection, KEYS)
        its = MESSAGE.c.consumer == "mail", MESSAGE.c.key.in_(old)
        connection.execute(update(MESSAGE).where(*its).values(accepted_at=LONG_AGO))
    assert inbox.purge(engine, batch=7).rows == len(old)
    assert (taken(engine, "mail"), taken(engine, "payments")) == (KEYS[1::2], KEYS)


def test_a_purge_looks_up_each_key(engine: Engine) -> None:
    """Each key of a batch is looked up in its own partition, however many there are."""
    statement: Any = delete_batch(Aging(MESSAGE, "accepted_at"), has_partitions=True)
    compiled = statement.compile(engine)
    given = {"consumer_": "mail", "horizon": datetime.now(UTC), "after": LONG_AGO, "batch": 500}
    many = "SELECT 'mail', 'a' || n, '', now() - interval '1 day' FROM generate_series(1, 20000) AS n"
    with engine.begin() as connection:
        connection.execute(
            text(f"INSERT INTO inbox_message (consumer, key, claim, accepted_at) {many}; ANALYZE")
        )
        connection.execute(begin_purge(MESSAGE))
        plan = connection.exec_driver_sql(f"EXPLAIN {compiled}", compiled.construct_params(given)).scalars()
        (join,) = [line for line in plan if " Join " in line or "Nested Loop" in line]
    assert "Nested Loop" in join


def test_a_purge_deletes_old_loads(engine: Engine, postgres: Database) -> None:
    """The same for rows that Spark has written in bulk."""
    for consumer in ("payments", "mail"):
        for run, keys in (("old", KEYS[::2]), ("young", KEYS[1::2])):
            write(postgres, [batch(*((key, 1) for key in keys))], consumer=consumer, run=run)
    with engine.begin() as connection:
        its = LEDGER.c.consumer == "mail", LEDGER.c.run == "old"
        connection.execute(update(LEDGER).where(*its).values(committed_at=LONG_AGO))
    assert inbox.purge(engine, batch=7).rows == len(KEYS[::2])
    assert (taken(engine, "mail"), taken(engine, "payments")) == (KEYS[1::2], KEYS)


def test_the_size_has_the_partitions(engine: Engine) -> None:
    """`status` counts the bytes of all partitions and their indexes."""
    with engine.begin() as connection:
        mail.accept_many(connection, KEYS)
        size = text("SELECT sum(pg_total_relation_size(oid)) FROM pg_class WHERE relname LIKE 'part_'")
        expected = connection.execute(size).scalar_one()
    assert [each.bytes for each in inbox.status(engine)] == [expected]
    assert expected > 0


def test_the_check_tries_everything(engine: Engine) -> None:
    """With a consumer for whose rows there is a partition, everything is tried; without, the report says what
    to do."""
    report = inbox.check(engine, consumer="mail")
    assert (report.is_safe, report.is_complete) == (True, True)
    report = inbox.check(engine)
    assert report.is_safe
    assert report.is_complete or "consumer=" in next(
        e.why for e in report.findings if e.result == "not tried"
    )


@pytest.mark.parametrize("layout", OF_OUTBOX)
def test_status_mode_and_outbox(postgres: Database, layout: str) -> None:
    """A partitioned `inbox_status` and `outbox_message` work, too."""
    engine = postgres.engine()
    with engine.begin() as connection:
        partition(connection, "outbox_message", "waiting", *OF_OUTBOX[layout])
        partition(connection, "inbox_status", "record", *LAYOUTS[layout])
    handle_and_relay(engine)


@on("mariadb", "mysql")
@pytest.mark.mysql
def test_on_mysql_and_mariadb(migrated: Database) -> None:
    """Their own partitions work, except that MySQL does not find all keys of a list in partitions by KEY of
    several columns: there, such a table is refused."""
    engine = migrated.engine()
    with engine.begin() as connection:
        for table in ("inbox_message", "inbox_status"):
            connection.execute(text(f"ALTER TABLE {table} PARTITION BY KEY (`key`) PARTITIONS 4"))
        connection.execute(text("ALTER TABLE outbox_message PARTITION BY HASH (sequence) PARTITIONS 4"))
    handle_and_relay(engine)
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE inbox_message PARTITION BY KEY (consumer, `key`) PARTITIONS 4"))
    report = inbox.check(engine)
    assert (report.is_safe, report.is_complete) == (
        (True, True) if migrated.name == "mariadb" else (False, False)
    )


def handle_and_relay(engine: Engine) -> None:
    """Every part of the check passes; records are claimed once, and messages leave in their order."""
    for report in (inbox.check(engine, consumer="mail"), outbox.check(engine)):
        assert [str(each) for each in report.findings if each.result in ("refused", "not tried")] == []
    box = StatusInbox("mail", store=SqlStore(engine))
    for verdict in (Verdict.NEW, Verdict.DUPLICATE):
        for key in KEYS:
            with box.claim(key) as claim:
                assert claim.verdict is verdict
    with engine.begin() as connection:
        for number in range(3):
            Outbox().publish_many(connection, [Message("t", str(number), key=key) for key in KEYS])
    publisher = Recorder()
    assert Relay(engine, publisher).run_once() == len(KEYS) * 3
    for key in KEYS:
        assert [message.payload for message in publisher.accepted if message.key == key] == [b"0", b"1", b"2"]


@pytest.mark.parametrize("name", ["tenant", "none", "select", "a:b\"c'd"])
def test_a_map_of_schemas(postgres: Database, name: str) -> None:
    """A partitioned table to which only the connection's map of schemas leads is purged like others: what it
    is, is asked where the statements go. A relay is given the schema."""
    plain = postgres.engine()
    with plain.begin() as connection:
        connection.execute(CreateSchema(name))
        tables(name).metadata.create_all(connection)
        quoted = connection.dialect.identifier_preparer.quote_identifier(name)
        connection.exec_driver_sql(f"SET LOCAL search_path = {quoted}")
        partition(connection, "inbox_message", "part", *LAYOUTS["hash"])
    engine = plain.execution_options(schema_translate_map={None: name})
    with engine.begin() as connection:
        mail.accept_many(connection, KEYS)
        its = MESSAGE.c.consumer == "mail", MESSAGE.c.key.in_(KEYS[::2])
        connection.execute(update(MESSAGE).where(*its).values(accepted_at=LONG_AGO))
        Outbox().publish_many(connection, [Message("t", "a", key=key) for key in KEYS])
    assert inbox.purge(engine, batch=7).rows == len(KEYS[::2])
    with engine.connect() as connection:
        assert set(connection.scalars(select(MESSAGE.c.key))) == set(KEYS[1::2])
    with pytest.raises(InvalidOption, match="schema_translate_map"):
        Relay(engine, Recorder())
    assert Relay(plain, Recorder(), schema=name).run_once() == len(KEYS)
    for report in (inbox.check(engine), outbox.check(engine), inbox.check(plain, schema=name)):
        assert (report.is_safe, report.is_complete) == (True, True)


@on("mariadb", "mysql")
def test_a_map_to_another_database(migrated: Database) -> None:
    """On MySQL and MariaDB the map names another database: what operators do and see is there."""
    here = migrated.engine()
    name = f"{here.url.database} 2"
    there = here.execution_options(schema_translate_map={None: name})
    ids = tables().outbox.ids
    with here.begin() as connection:
        connection.execute(CreateSchema(name))
    try:
        tables().metadata.create_all(there)
        for engine in (here, there):
            with engine.begin() as connection:
                Outbox().publish(connection, "orders", "a", id="daily")
        outbox.drop(there, "daily")
        for engine, left in ((here, ["daily"]), (there, [])):
            with engine.connect() as connection:
                assert list(connection.scalars(select(ids.c.id))) == left
        with there.begin() as connection:
            assert mail.accept(connection, "a") is Verdict.NEW
        MESSAGE.drop(here)
        assert outbox.audit(there, "orders", "mail").taken_since is not None
        assert [each.bytes > 0 for each in inbox.status(there)] == [True]
    finally:
        with here.begin() as connection:
            connection.execute(DropSchema(name))


GAPS = {
    "outbox_dead": ("RANGE (id)", ["FROM (MINVALUE) TO ('m')", "FROM ('n') TO (MAXVALUE)"]),
    "outbox_gone": ("LIST (topic)", ["IN ('*')"]),
    "outbox_message": ("RANGE (bucket)", ["FROM (0) TO (MAXVALUE)"]),
    "outbox_sent": ("RANGE (id)", []),
}


def test_a_partition_that_is_missing(postgres: Database) -> None:
    """Relays find a place for every row that they add, also in a partition that is divided itself. Where one
    is missing, the table is refused; with a partition for the other values it is right."""
    engine = postgres.engine()
    with engine.begin() as connection:
        for table, how in GAPS.items():
            partition(connection, table, f"{table}_", *how)
        connection.execute(text("DROP TABLE outbox_message_0"))
        connection.execute(
            text(
                "CREATE TABLE outbox_message_0 PARTITION OF outbox_message FOR VALUES FROM (MINVALUE) TO "
                "(MAXVALUE) PARTITION BY LIST (sequence)"
            )
        )
    found = {each.what: each.why for each in outbox.check(engine).findings if each.result == "refused"}
    assert {*found} == {f"table {table}" for table in GAPS}
    for table in GAPS:
        part = "outbox_message_0" if table == "outbox_message" else table
        assert found[f"table {table}"].startswith(f"{part} has no partition for the values")
    with pytest.raises(outbox.errors.UnsafeDatabase, match="outbox_gone has no partition"):
        Relay(engine, Recorder()).run_once()
    with engine.begin() as connection:
        for table in ("outbox_dead", "outbox_gone", "outbox_message_0", "outbox_sent"):
            connection.execute(text(f"CREATE TABLE {table}_others PARTITION OF {table} DEFAULT"))
    handle_and_relay(engine)


@on("mariadb", "mysql")
def test_records_without_a_place(migrated: Database) -> None:
    """A table to which only relays add needs a place for every row; without one, a record is not dropped in
    silence. A second message with an id is recorded once."""
    engine, publisher = migrated.engine(), Recorder()
    relay, parts = Relay(engine, publisher, keep_sent=60), "PARTITION p VALUES LESS THAN ('m')"
    by = f"ALTER TABLE outbox_sent PARTITION BY RANGE COLUMNS (id) ({parts}"
    with engine.begin() as connection:
        connection.exec_driver_sql(f"{by}, PARTITION q VALUES LESS THAN (MAXVALUE))")
        Outbox().publish(connection, "t", "a", id="x1")
        connection.execute(update(tables().outbox.message).values(id="x2"))
        Outbox().publish(connection, "t", "b", id="x2")
    assert outbox.check(engine).is_safe
    assert relay.run_once() == 2
    with engine.begin() as connection:
        sent, message = tables().outbox.sent, tables().outbox.message
        assert list(connection.scalars(select(sent.c.id))) == ["x2"]
        connection.execute(delete(sent))
        connection.exec_driver_sql(f"{by})")
        Outbox().publish(connection, "t", "c", id="y")
        database = relaying(connection.dialect.name, tables().outbox)
        places = [tuple(row) for row in connection.execute(select(message.c.bucket, message.c.sequence))]
        with pytest.raises(OperationalError, match="no partition"):
            database.forget(connection, database.fetch(connection, places, 100), keep=60)
        ranges = (
            "ALTER TABLE outbox_message PARTITION BY RANGE (sequence) (PARTITION p VALUES LESS THAN (999999))"
        )
        connection.exec_driver_sql(ranges)
    wrong = [each.what for each in outbox.check(engine).findings if "add one with MAXVALUE" in each.why]
    assert wrong == ["table outbox_message", "table outbox_sent"]
