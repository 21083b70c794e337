"""Tables that cannot keep a promise are refused by name, before anything is committed."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import Connection, Engine, event, func, select, text
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.pool import NullPool, StaticPool

import inbox
import outbox
from inbox import CheckReport, Inbox, Listener, Outcome, SqlStore, StatusInbox, Verdict
from inbox.errors import UnsafeDatabase
from inbox.schema import tables
from inbox_outbox_base.transactions import memories
from outbox import Accepted, Outbox, Refused, Relay
from outbox._publishing.safety import check_relays
from tests.support.database import Database
from tests.support.on_servers import on
from tests.support.outbox_publishers import Recorder, publish
from tests.support.roles import rights, role
from tests.support.spark.writes import batch, counts, make_result, prepared, write

TABLES = tables()
MESSAGE = TABLES.message
VIEW = "ALTER TABLE {0} RENAME TO kept\nCREATE VIEW {0} AS SELECT * FROM kept"
DROPS = "CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN {1}; END'\n"
LIES = {
    "view": (VIEW, "is a view"),
    "view that reports rows": (
        f"{VIEW}\n{DROPS}CREATE TRIGGER t INSTEAD OF INSERT ON {{0}} FOR EACH ROW EXECUTE FUNCTION nothing()",
        "is a view",
    ),
    "trigger": (
        f"{DROPS}CREATE TRIGGER drops BEFORE INSERT ON {{0}} FOR EACH ROW EXECUTE FUNCTION nothing()",
        "trigger drops runs before",
    ),
    "rule": ("CREATE RULE lies AS ON INSERT TO {0} DO INSTEAD NOTHING", "rule lies"),
    "distributed": (
        (
            "CREATE TABLE pg_dist_partition (logicalrelid regclass)\n"
            "INSERT INTO pg_dist_partition VALUES ('pg_class'), ('{0}')"
        ),
        "Citus",
    ),
    "unlogged": ("ALTER TABLE {0} SET UNLOGGED", "unlogged"),
    "no key": ("ALTER TABLE {0} DROP CONSTRAINT {0}_pkey", "no valid unique key"),
    "deferrable key": (
        "ALTER TABLE {0} DROP CONSTRAINT {0}_pkey\nALTER TABLE {0} ADD PRIMARY KEY ({2}) DEFERRABLE",
        "no valid unique key",
    ),
    "longer key": (
        "ALTER TABLE {0} DROP CONSTRAINT {0}_pkey\nALTER TABLE {0} ADD UNIQUE ({2}, {3})",
        "no valid unique key",
    ),
    "foreign key": (
        "CREATE TABLE note (a text, b text, CONSTRAINT about FOREIGN KEY (a, b) REFERENCES {0} ({2}))",
        "foreign keys refer to it (note.about)",
    ),
    "heirs": ("CREATE TABLE heir () INHERITS ({0})", "inherit from it"),
}
"""On PostgreSQL: statements about the table {0}, and what is said about it."""
SILENT = ("view that reports rows", "trigger", "distributed", "no key", "unlogged")
"""Those that take a message without an error of the database."""
BY_TABLE = {
    "inbox_message": ("NEW", "consumer, key", "accepted_at"),
    "inbox_status": ("NULL", "consumer, key", "created_at"),
    "outbox_message": ("NULL", "bucket, sequence", "created_at"),
}


def lie(engine: Engine, table: str, name: str) -> str:
    """Change the table; returns what is to be said about it."""
    script, said = LIES[name]
    execute(engine, script.format(table, *BY_TABLE[table]))
    return said


def execute(engine: Engine, script: str) -> None:
    """Run statements."""
    with engine.begin() as connection:
        for statement in script.splitlines():
            connection.exec_driver_sql(statement)


def handled(engine: Engine) -> Callable[[str], Outcome]:
    """A handler that writes an effect."""
    execute(engine, "CREATE TABLE effect (message varchar(9))")

    @Inbox("billing", wait=0).handler(engine, key=str)
    def handle(connection: Connection, message: str) -> None:
        connection.execute(text("INSERT INTO effect VALUES (:message)"), {"message": message})

    return handle


def effects(engine: Engine) -> int:
    """How many effects were committed."""
    with engine.connect() as connection:
        return connection.exec_driver_sql("SELECT count(*) FROM effect").scalar_one()  # type: ignore[no-any-return]


def refused(report: CheckReport) -> dict[str, str]:
    """What was refused, and why."""
    assert report.is_safe is not any(each.result == "refused" for each in report.findings)
    found: dict[str, str] = {}
    for each in report.findings:
        if each.result == "refused":
            found[each.what] = f"{found.get(each.what, '')}{each.why}. "
    return found


@pytest.mark.parametrize("name", SILENT)
def test_a_handler_refuses(postgres: Database, name: str) -> None:
    """The first message raises, nothing of it is committed, and no failure counts; a listener ends."""
    engine = postgres.engine()
    handle = handled(engine)
    said = lie(engine, "inbox_message", name)
    for _ in range(2):  # that it was refused is not remembered as an answer
        with pytest.raises(UnsafeDatabase, match=f"table inbox_message: .*{said}") as caught:
            handle("a")
        assert not Outcome(Verdict.NEW, error=caught.value).is_failure
    with pytest.raises(UnsafeDatabase, match=said):
        Listener().decide(["a"], handle)
    assert effects(engine) == 0


@pytest.mark.parametrize("name", LIES)
def test_the_check_refuses(postgres: Database, name: str) -> None:
    """The check names the table, and tries nothing on it."""
    engine = postgres.engine()
    said = lie(engine, "inbox_message", name)
    report = inbox.check(engine)
    assert said in refused(report)["table inbox_message"]
    assert {each.result for each in report.findings if each.what.startswith(("a key", "a purge"))} == {
        "not tried"
    }
    assert outbox.check(engine).is_safe


@pytest.mark.parametrize("name", ["trigger", "distributed", "no key"])
def test_status_mode_refuses(postgres: Database, name: str) -> None:
    """Nothing is claimed."""
    engine = postgres.engine()
    said = lie(engine, "inbox_status", name)
    orders = StatusInbox("orders", store=SqlStore(engine))
    with pytest.raises(UnsafeDatabase, match=f"table inbox_status: .*{said}"), orders.claim("a"):
        pytest.fail("claimed")
    assert said in refused(inbox.check(engine))["table inbox_status"]


@pytest.mark.parametrize("name", ["distributed", "no key"])
def test_spark_refuses(postgres: Database, name: str) -> None:
    """The driver refuses before a row is read."""
    engine = make_result(postgres)
    said = lie(engine, "inbox_message", name)
    with pytest.raises(UnsafeDatabase, match=said):
        prepared(postgres)


@pytest.mark.parametrize("name", ["trigger", "distributed", "no key", "unlogged"])
def test_the_outbox_refuses(postgres: Database, name: str) -> None:
    """Publishers and relays raise the outbox's own error, and a handler that publishes is not to blame."""
    engine = postgres.engine()
    said = lie(engine, "outbox_message", name)
    own = outbox.errors.UnsafeDatabase
    with pytest.raises(own, match=f"table outbox_message: .*{said}") as caught, engine.begin() as connection:
        Outbox().publish(connection, "orders", "a")
    assert not Outcome(Verdict.NEW, error=caught.value).is_failure
    with pytest.raises(own, match=said):
        Relay(engine, Recorder()).run_once()
    assert said in refused(outbox.check(engine))["table outbox_message"]
    assert inbox.check(engine).is_safe


@pytest.mark.parametrize("deferred", ["", "DEFERRABLE INITIALLY DEFERRED"])
def test_a_trigger_that_deletes_afterwards(postgres: Database, deferred: str) -> None:
    """What no catalogue tells is tried: a trigger that runs AFTER, or at the COMMIT, may delete the row that
    called it."""
    engine = postgres.engine()
    for table in ("inbox_message", "outbox_message"):
        body = f"BEGIN DELETE FROM {table}; RETURN NULL; END"
        execute(
            engine,
            f"CREATE FUNCTION f_{table}() RETURNS trigger LANGUAGE plpgsql AS '{body}'\n"
            f"CREATE CONSTRAINT TRIGGER t AFTER INSERT ON {table} {deferred} "
            f"FOR EACH ROW EXECUTE FUNCTION f_{table}()",
        )
    assert "not there as it was inserted" in refused(inbox.check(engine))["a key comes twice"]
    assert "something drops its row" in refused(outbox.check(engine))["a publish"]


NUMBERED = {
    "ALTER SEQUENCE outbox_message_sequence_seq MINVALUE -9 INCREMENT BY -1": "counts down",
    "ALTER SEQUENCE outbox_message_sequence_seq INCREMENT BY 1 CYCLE": "begins again",
    (
        "ALTER SEQUENCE outbox_message_sequence_seq NO CYCLE\nCREATE SEQUENCE other\n"
        "ALTER TABLE outbox_message ALTER sequence SET DEFAULT nextval('other')"
    ): "not drawn from the sequence outbox_message_sequence_seq",
    (
        "ALTER TABLE outbox_message ALTER sequence DROP DEFAULT\n"
        "ALTER TABLE outbox_message ALTER sequence ADD GENERATED BY DEFAULT AS IDENTITY"
    ): "outbox_message_sequence_seq, outbox_message_sequence_seq1",
}
"""One after the other: statements, and what is said then."""


def test_a_trigger_on_replicas(postgres: Database) -> None:
    """A trigger that fires only on replicas is refused in sessions in which it fires."""
    replica = postgres.engine(connect_args={"options": "-c session_replication_role=replica"})
    lie(replica, "inbox_message", "trigger")
    assert inbox.check(replica).is_safe
    execute(replica, "ALTER TABLE inbox_message ENABLE REPLICA TRIGGER drops")
    assert "trigger drops" in refused(inbox.check(replica))["table inbox_message"]
    assert inbox.check(postgres.engine()).is_safe


def test_a_sequence_that_is_not_its_own(postgres: Database) -> None:
    """A table that owns no sequence is refused: relays could not see the numbers drawn."""
    engine = postgres.engine()
    execute(engine, "ALTER SEQUENCE outbox_message_sequence_seq OWNED BY NONE")
    assert "owns no sequence" in refused(outbox.check(engine))["table outbox_message"]
    execute(engine, "ALTER SEQUENCE outbox_message_sequence_seq OWNED BY outbox_message.sequence")
    for script, said in NUMBERED.items():
        execute(engine, script)
        assert said in refused(outbox.check(engine))["table outbox_message"]
        with pytest.raises(outbox.errors.UnsafeDatabase, match=said):
            Relay(engine, Recorder()).run_once()
    execute(
        engine,
        "DROP SEQUENCE outbox_message_sequence_seq\nALTER SEQUENCE outbox_message_sequence_seq1 RESTART",
    )
    assert outbox.check(engine).is_safe  # an identity column
    execute(
        engine,
        "ALTER TABLE outbox_message ALTER sequence DROP IDENTITY\n"
        "CREATE SEQUENCE outbox_message_sequence_seq OWNED BY outbox_message.sequence CACHE 5\n"
        "ALTER TABLE outbox_message ALTER sequence SET DEFAULT nextval('outbox_message_sequence_seq')",
    )
    assert "CACHE 5" in refused(outbox.check(engine))["the sequence"]
    execute(engine, "ALTER SEQUENCE outbox_message_sequence_seq CACHE 1")
    assert outbox.check(engine).is_safe


def test_a_temporary_table(postgres: Database) -> None:
    """A temporary table that hides the real one is refused."""
    with postgres.engine().begin() as connection:
        connection.exec_driver_sql("CREATE TEMPORARY TABLE inbox_message (LIKE inbox_message INCLUDING ALL)")
        with pytest.raises(UnsafeDatabase, match="unlogged or temporary"):
            Inbox("billing").accept(connection, "a")


ELSEWHERE = {
    "mariadb": {
        "ALTER TABLE {0} ENGINE=MyISAM": "MyISAM",
        "CREATE TRIGGER shouts BEFORE INSERT ON {0} FOR EACH ROW SET NEW.claim = NEW.claim": "trigger shouts",
        "ALTER TABLE {0} MODIFY `key` varchar(128) NOT NULL": "type of key cuts",
        "ALTER TABLE {0} MODIFY `key` varbinary(20) NOT NULL": "type of key cuts",
        "ALTER TABLE {0} DROP PRIMARY KEY": "no valid unique key",
        "ALTER TABLE {0} DROP PRIMARY KEY, ADD PRIMARY KEY (consumer, `key`(9))": "no valid unique key",
        (
            "CREATE TABLE note (c varbinary(128), k varbinary(512), "
            "CONSTRAINT about FOREIGN KEY (c, k) REFERENCES {0} (consumer, `key`))"
        ): "foreign keys refer to it .note.about.",
        "RENAME TABLE {0} TO kept\nCREATE VIEW {0} AS SELECT * FROM kept": "is a view",
    },
    "sqlite": {
        "CREATE TRIGGER drops BEFORE INSERT ON {0} BEGIN SELECT RAISE(IGNORE); END": "trigger drops",
        "CREATE TRIGGER drops AFTER INSERT ON {0} BEGIN SELECT RAISE/**/(IGNORE); END": "trigger drops",
        "CREATE TRIGGER drops BEFORE INSERT ON {0} BEGIN SELECT 1; /* AFTER */ END": "trigger drops",
        (
            "CREATE TRIGGER drops AFTER INSERT ON {0} WHEN NEW.key = 'b' "
            'BEGIN DELETE FROM "{0}" WHERE key = NEW.key; END'
        ): "trigger drops",
        (
            "PRAGMA foreign_keys = ON\n"
            "CREATE TABLE note (c TEXT, k TEXT, FOREIGN KEY (c, k) REFERENCES Inbox_Message)"
        ): "foreign keys refer to it .note.",
        "ALTER TABLE {0} RENAME TO kept\nCREATE VIEW {0} AS SELECT * FROM kept": "is a view",
        "CREATE UNIQUE INDEX i ON {0} (consumer, key COLLATE NOCASE)": "type of key cuts",
    },
}


@pytest.mark.parametrize(
    ("server", "script"),
    [(name, each) for name, some in ELSEWHERE.items() for each in some],
    indirect=["server"],
)
def test_other_databases(migrated: Database, script: str) -> None:
    """The same, with what can be different there."""
    engine, said = migrated.engine(), ELSEWHERE[migrated.name][script]
    handle = handled(engine)
    execute(engine, script.format("inbox_message"))
    with pytest.raises((UnsafeDatabase, DBAPIError), match=None if "VIEW" in script else said):
        handle("a")
    assert effects(engine) == 0
    with engine.connect() as connection:  # also where a rollback undoes nothing
        assert connection.execute(select(MESSAGE)).all() == []
    assert re.search(said, refused(inbox.check(engine))["table inbox_message"])


WATCHED = {
    "audit": (
        "CREATE TABLE audit (n BIGINT AUTO_INCREMENT PRIMARY KEY, k VARBINARY(512))\n"
        "CREATE TRIGGER u AFTER UPDATE ON {0} FOR EACH ROW INSERT INTO audit (k) VALUES (NEW.`key`)\n"
        "CREATE TRIGGER i AFTER INSERT ON {0} FOR EACH ROW SET @last = LAST_INSERT_ID(2)"
    ),
    "count": "ALTER TABLE {0} ADD COLUMN n BIGINT NOT NULL AUTO_INCREMENT, ADD UNIQUE (n)",
}
"""Statements after which MySQL's and MariaDB's answers do not tell whether a row went in."""


@on("mariadb", "mysql")
@pytest.mark.parametrize("name", WATCHED)
def test_an_answer_that_does_not_tell(migrated: Database, name: str) -> None:
    """Triggers that appear while a program runs, as those of pt-online-schema-change, and a column that
    counts rows: the row itself says whether it is new, at once."""
    engine = make_result(migrated)
    handle = handled(engine)
    assert handle("a").verdict is Verdict.NEW
    execute(engine, WATCHED[name].format("inbox_message"))
    assert [handle(key).verdict.name for key in "aabb"] == ["DUPLICATE", "DUPLICATE", "NEW", "DUPLICATE"]
    assert effects(engine) == 2
    with engine.begin() as connection:
        verdicts = Inbox("billing").accept_many(connection, ["a", "c"])
    assert verdicts == [Verdict.DUPLICATE, Verdict.NEW]
    if name == "audit":  # the other table is refused when a job begins
        for keys, expected in (("c", {"new": 1}), ("bcd", {"new": 2, "duplicate": 1})):
            rows = batch(*((key, 1) for key in keys))
            # At this level the writer does not look the keys up first.
            report = write(migrated, [rows], consumer="load", isolation_level="SERIALIZABLE")
            assert counts(report) == expected


def test_the_check_is_safe(migrated: Database) -> None:
    """On ordinary tables everything is tried, and nothing stays."""
    engine = migrated.engine()
    for report in (inbox.check(engine), outbox.check(engine)):
        assert (refused(report), report.is_complete) == ({}, True)
    with engine.connect() as connection:
        for table in TABLES.metadata.sorted_tables:
            if table.name not in ("outbox_bucket", "inbox_outbox_version"):
                assert connection.execute(select(func.count()).select_from(table)).scalar_one() == 0


@on("postgresql", "mariadb")
def test_the_check_waits_for_nobody(migrated: Database) -> None:
    """It locks no live row: with all rows locked by others it ends, and finds the same."""
    engine = migrated.engine()
    with engine.begin() as connection:
        Inbox("billing").accept_many(connection, ["a", "b"])
        Outbox().publish(connection, "orders", "a")
    # At a higher level, MariaDB would also lock the places of new rows.
    with engine.execution_options(isolation_level="READ COMMITTED").begin() as connection:
        for table in TABLES.metadata.sorted_tables:
            connection.execute(select(table).with_for_update())
        with limited(migrated) as other:
            assert inbox.check(other, consumer="billing").is_complete
            assert outbox.check(other).is_complete


REFERS = "\nALTER TABLE {0} ADD CONSTRAINT f FOREIGN KEY (id) REFERENCES known (id)"
CHANGED = {
    "postgresql": {
        "inbox_message": (
            "CREATE UNIQUE INDEX u_{0} ON {0} (key) WHERE claim IS NOT NULL",
            "unique key u_",
        ),
        "inbox_status": ("ALTER TABLE {0} ALTER lease_until TYPE timestamptz(0)", "type of lease_until"),
        "outbox_message": ("ALTER TABLE {0} ALTER topic TYPE char(249)", "type of topic"),
        "outbox_delayed": ("ALTER TABLE {0} ALTER headers TYPE json USING headers::json", "type of headers"),
        "outbox_dead": (
            "ALTER TABLE {0} ADD CONSTRAINT u_{0} EXCLUDE USING hash (topic WITH =)",
            "unique key u_",
        ),
        "outbox_id": (
            f"CREATE TABLE known (id text PRIMARY KEY){REFERS}",
            "foreign key f refuses",
        ),
        "outbox_sent": ("CREATE UNIQUE INDEX u_{0} ON {0} (left(id, 8))", "unique key u_"),
    },
    "mariadb": {
        "inbox_message": ("ALTER TABLE {0} MODIFY claim varbinary(8)", "type of claim"),
        "inbox_status": ("ALTER TABLE {0} MODIFY lease_until datetime", "type of lease_until"),
        "outbox_message": ("ALTER TABLE {0} MODIFY payload blob NOT NULL", "type of payload"),
        "outbox_delayed": (
            "ALTER TABLE {0} CONVERT TO CHARACTER SET latin1",
            "type of content_type, headers",
        ),
        "outbox_id": (
            f"CREATE TABLE known (id varbinary(128) PRIMARY KEY){REFERS}",
            "foreign key f refuses",
        ),
        "outbox_sent": ("CREATE UNIQUE INDEX u_{0} ON {0} (id(8))", "unique key u_"),
    },
    "sqlite": {
        "inbox_message": (
            "CREATE UNIQUE INDEX u_{0} ON {0} (key) WHERE claim IS NOT NULL",
            "unique key u_",
        ),
        "outbox_id": ("DROP TABLE {0}\nCREATE TABLE {0} (id STRING NOT NULL PRIMARY KEY)", "type of id"),
        "outbox_pause": (
            "DROP TABLE {0}\nCREATE TABLE {0} (topic TEXT PRIMARY KEY REFERENCES o, paused_at DATETIME)",
            "foreign key to o refuses",
        ),
        "outbox_sent": ("CREATE UNIQUE INDEX u_{0} ON {0} (lower(id))", "unique key u_"),
        "outbox_gone": (
            "DROP TABLE {0}\nCREATE TABLE {0} (topic TEXT PRIMARY KEY, gone_at DATETIME) WITHOUT ROWID",
            "WITHOUT ROWID",
        ),
    },
}
"""By table: statements about the table {0}, and what is said about it."""
AS_OTHERS_WRITE = {
    "postgresql": (
        "ALTER TABLE inbox_ledger ALTER committed_at TYPE timestamp(6) with time zone\n"
        "DO $$ BEGIN IF current_setting('server_version_num')::int >= 170000 THEN "
        'ALTER TABLE inbox_ledger ALTER consumer TYPE text COLLATE "pg_c_utf8"; END IF; END $$'
    ),
    "sqlite": (
        "ALTER TABLE outbox_relay DROP COLUMN keeps_sent\n"
        "ALTER TABLE outbox_relay ADD COLUMN keeps_sent INTEGER"
    ),
}


@on("postgresql", "mariadb", "mysql", "sqlite")
def test_columns_and_keys(migrated: Database) -> None:
    """Columns that could change a value, and keys that could refuse a row, are named. A further key that
    holds the columns of ours is right, and a column that is wider, or as other tools write it."""
    engine = migrated.engine()
    changes = CHANGED["mariadb" if migrated.name == "mysql" else migrated.name]
    execute(engine, "CREATE UNIQUE INDEX harmless ON outbox_bucket (generation, bucket)")
    if migrated.name != "sqlite":
        alter = "ALTER" if migrated.name == "postgresql" else "MODIFY"
        kind = "TYPE bigint" if migrated.name == "postgresql" else "bigint NOT NULL"
        execute(engine, f"ALTER TABLE outbox_message {alter} attempts {kind}")
    execute(engine, AS_OTHERS_WRITE.get(migrated.name, ""))
    for table, (script, _) in changes.items():
        execute(engine, script.format(table))
    found = refused(inbox.check(engine)) | refused(outbox.check(engine))
    assert {*found} == {f"table {table}" for table in changes}
    for table, (_, said) in changes.items():
        assert said in found[f"table {table}"]


FILLED = {
    "postgresql": (
        "CREATE DOMAIN tagged AS int NOT NULL DEFAULT 1\n"
        "ALTER TABLE outbox_dead ADD a int NOT NULL DEFAULT 1, ADD b tagged, ADD e int, ADD c int NOT NULL "
        "GENERATED BY DEFAULT AS IDENTITY, ADD d int NOT NULL GENERATED ALWAYS AS (attempts) STORED"
    ),
    "mariadb": (
        "ALTER TABLE outbox_dead ADD a int NOT NULL DEFAULT 1, ADD b int NOT NULL AUTO_INCREMENT, "
        "ADD KEY (b), ADD d int AS (attempts) VIRTUAL, ADD e int"
    ),
    "mysql": (
        "ALTER TABLE outbox_dead ADD a int NOT NULL DEFAULT (1), ADD b int NOT NULL AUTO_INCREMENT, "
        "ADD KEY (b), ADD d int AS (attempts) STORED NOT NULL, ADD e int"
    ),
    "sqlite": (
        "ALTER TABLE outbox_dead ADD a int NOT NULL DEFAULT 1\n"
        "ALTER TABLE outbox_dead ADD d int NOT NULL AS (attempts)\nALTER TABLE outbox_dead ADD e int"
    ),
}
"""Further columns that the database fills."""
GONE = "DROP TABLE outbox_gone\nCREATE TABLE outbox_gone (topic TEXT NOT NULL PRIMARY KEY, {0})"
UNFILLED = {
    "postgresql": {
        "ALTER TABLE inbox_consumer ADD x int NOT NULL": "x",
        "CREATE DOMAIN sure AS int NOT NULL\nALTER TABLE outbox_sent ADD x sure": "x",
        "ALTER TABLE outbox_dead ALTER dead_at DROP DEFAULT": "dead_at",
        "ALTER TABLE outbox_message ALTER error SET NOT NULL": "error",
    },
    "mariadb": {
        "ALTER TABLE outbox_dead ADD x int NOT NULL": "x",
        "ALTER TABLE outbox_sent MODIFY `KEY` varbinary(512) NOT NULL DEFAULT ''": "key",
    },
    "mysql": {
        "ALTER TABLE outbox_dead ADD x int NOT NULL INVISIBLE": "x",
        "ALTER TABLE outbox_sent MODIFY sent_at datetime(6) NOT NULL": "sent_at",
    },
    "sqlite": {
        GONE.format("gone_at DATETIME NOT NULL DEFAULT CURRENT_TIMESTAMP, x int NOT NULL"): "x",
        GONE.format("gone_at DATETIME NOT NULL"): "gone_at",
    },
}
"""Statements, and the column into which our rows put nothing."""


@on("postgresql", "mariadb", "mysql", "sqlite")
def test_a_column_without_a_value(migrated: Database) -> None:
    """A column that is NOT NULL, and that neither our rows nor the database fill, is refused by name."""
    engine = migrated.engine()
    execute(engine, FILLED[migrated.name])
    publish(engine, "a1")
    assert Relay(engine, Recorder(lambda _: Refused("no"))).run_once() == 0
    for report in (inbox.check(engine), outbox.check(engine)):
        assert refused(report) == {}
    assert outbox.status(engine).dead == 1
    for script, column in UNFILLED[migrated.name].items():
        execute(engine, script)
        found = refused(inbox.check(engine)) | refused(outbox.check(engine))
        table = re.findall(r"(?:ALTER|CREATE) TABLE (\w+)", script)[-1]
        assert f"{column} is NOT NULL" in found[f"table {table}"]


SHORT_KEYS = {"postgresql": "(left({0}, 8))", "sqlite": "(substr({0}, 1, 8))"}


@on("postgresql", "mariadb", "sqlite")
def test_a_refusal_is_no_row(migrated: Database) -> None:
    """A unique key that appears while a program runs: an id that it refuses is not in use, but an error."""
    engine = migrated.engine()
    part = SHORT_KEYS.get(migrated.name, "({0}(8))")

    def publish(name: str) -> None:
        with engine.begin() as connection:
            Outbox().publish(connection, "orders", "a", id=name)

    publish("invoice-1")
    execute(engine, f"CREATE UNIQUE INDEX u ON outbox_id {part.format('id')}")
    publish("invoice-1")  # it is in use
    with pytest.raises((IntegrityError, outbox.errors.UnsafeDatabase)):
        publish("invoice-2")
    assert outbox.status(engine).pending == 1


@on("mariadb", "mysql")
def test_a_key_that_another_one_refuses(migrated: Database) -> None:
    """The same for the inbox: the key is neither in flight nor taken after the snapshot, but refused."""
    engine = migrated.engine()
    handle = handled(engine)
    handle("a")
    execute(engine, "CREATE UNIQUE INDEX u ON inbox_message (`key`)")
    for take in (
        lambda connection: Inbox("others").accept(connection, "a"),
        lambda connection: Inbox("others").accept_many(connection, ["a", "b"]),
    ):
        with (
            pytest.raises(UnsafeDatabase, match="refused, but it is not there"),
            engine.begin() as connection,
        ):
            take(connection)
    assert handle("b").verdict is Verdict.NEW


@contextmanager
def limited(database: Database) -> Iterator[Engine]:
    """An engine whose statements do not wait for locks."""
    wait = "SET lock_timeout = 500" if database.name == "postgresql" else "SET innodb_lock_wait_timeout = 1"
    engine = database.engine()

    @event.listens_for(engine, "connect")
    def limit(driver: Any, _: object) -> None:
        with driver.cursor() as cursor:
            cursor.execute(wait)
        driver.commit()

    yield engine


def test_one_statement_after_the_take(postgres: Database) -> None:
    """An engine's first message looks at the catalogue once, after its row; the next messages do not."""
    engine = postgres.engine()
    seen: list[str] = []

    @event.listens_for(engine, "before_cursor_execute")
    def note(_: object, __: object, statement: str, *___: object) -> None:
        seen.extend(word for word in ("INSERT INTO inbox_message", "pg_class") if word in statement)

    for key in ("a", "b"):
        with engine.begin() as connection:
            assert Inbox("billing").accept(connection, key) is Verdict.NEW
    assert seen == ["INSERT INTO inbox_message", "pg_class", "INSERT INTO inbox_message"]


@pytest.mark.parametrize("way", ["search_path", "schema_translate_map", "schema"])
def test_a_check_is_of_one_place(postgres: Database, way: str) -> None:
    """That the tables of one schema are right says nothing of another one, to which the same engine leads."""
    engine = postgres.engine()
    with engine.begin() as connection:
        version: Any = connection.dialect.server_version_info
        if way == "search_path" and version < (18,):
            pytest.skip("servers before PostgreSQL 18 do not tell their search path")
        connection.exec_driver_sql("CREATE SCHEMA other")
        tables("other").metadata.create_all(connection)
        connection.exec_driver_sql("ALTER TABLE other.inbox_message SET UNLOGGED")
    translate = {None: "other"} if way == "schema_translate_map" else {}
    for schema, is_safe in (("public", True), ("other", False)):
        options = {"schema_translate_map": translate} if translate and not is_safe else {}
        box = Inbox("billing", schema=None if way != "schema" else schema)
        with engine.execution_options(**options).connect() as connection:
            if way == "search_path":
                connection.exec_driver_sql(f"SET LOCAL search_path = {schema}")
            if is_safe:
                assert box.accept(connection, "a") is Verdict.NEW
            else:
                with pytest.raises(UnsafeDatabase):
                    box.accept(connection, "a")
                # A caller who commits nevertheless has not taken the key.
                assert connection.execute(select(tables(schema).message)).all() == []
            connection.commit()


def test_a_role_leads_to_tables_of_its_own(postgres: Database) -> None:
    """With `$user` in the search path, as by default, SET ROLE leads to other tables, and no server tells:
    each role's tables are looked at, and each gets the policy."""
    billing = Inbox("billing", retention=60)
    first, second = (f"tenant_{uuid4().hex[:12]}" for _ in range(2))
    with postgres.engine().begin() as connection:
        for name in (first, second):
            connection.exec_driver_sql(f"CREATE ROLE {name}")
            connection.exec_driver_sql(f"CREATE SCHEMA {name}")
            tables(name).metadata.create_all(connection)
            connection.exec_driver_sql(f"GRANT USAGE ON SCHEMA {name} TO {name}")
            connection.exec_driver_sql(f"GRANT ALL ON ALL TABLES IN SCHEMA {name} TO {name}")
        connection.exec_driver_sql(f"ALTER TABLE {second}.inbox_message SET UNLOGGED")
        connection.exec_driver_sql(f"SET LOCAL ROLE {first}")
        assert billing.accept(connection, "a") is Verdict.NEW
        connection.exec_driver_sql(f"SET LOCAL ROLE {second}")
        with pytest.raises(UnsafeDatabase, match="unlogged"):
            billing.accept(connection, "a")
        connection.exec_driver_sql("RESET ROLE")
        connection.exec_driver_sql(f"ALTER TABLE {second}.inbox_message SET LOGGED")
        connection.exec_driver_sql(f"SET LOCAL ROLE {second}")
        assert billing.accept(connection, "a") is Verdict.NEW
        connection.exec_driver_sql("RESET ROLE")
        for name in (first, second):
            assert connection.execute(select(tables(name).consumer.c.consumer)).scalars().all() == ["billing"]
        connection.rollback()


def test_a_check_is_believed_for_a_minute(postgres: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """What somebody changes later is found, too; and once it is mended, the next message is taken."""
    monkeypatch.setattr(memories, "BELIEVED", -1.0)
    engine = postgres.engine()
    handle = handled(engine)
    assert handle("a").verdict is Verdict.NEW
    lie(engine, "inbox_message", "unlogged")
    with pytest.raises(UnsafeDatabase):
        handle("b")
    execute(engine, "ALTER TABLE inbox_message SET LOGGED")
    assert handle("b").verdict is Verdict.NEW
    assert effects(engine) == 2


def test_a_relay_that_sees_only_some_rows(postgres: Database) -> None:
    """A relay whose role sees a part of the messages would pass the others: it is refused, unless a policy
    shows it everything."""
    engine = postgres.engine()
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE ROLE reader NOINHERIT")
        try:
            connection.exec_driver_sql("GRANT ALL ON ALL TABLES IN SCHEMA public TO reader")
            connection.exec_driver_sql("GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO reader")
            connection.exec_driver_sql("ALTER TABLE outbox_message ENABLE ROW LEVEL SECURITY")
            connection.exec_driver_sql("SET LOCAL ROLE reader")
            with pytest.raises(outbox.errors.UnsafeDatabase, match="outbox_message: row-level policies"):
                check_relays(connection, TABLES.outbox)
            connection.exec_driver_sql("RESET ROLE")
            connection.exec_driver_sql("CREATE POLICY p ON outbox_message TO reader USING (true)")
            connection.exec_driver_sql("SET LOCAL ROLE reader")
            check_relays(connection, TABLES.outbox)
        finally:
            connection.rollback()


def test_a_policy_that_is_made_while_a_relay_runs(
    postgres: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relay looks again after a minute, and ends before it passes more messages that it does not see."""
    monkeypatch.setattr(memories, "BELIEVED", -1.0)
    owner = postgres.engine()
    with role(postgres) as app:
        for right in rights("postgresql", "relay"):
            app.grant(right)

        def hide(_: object) -> Accepted:
            execute(owner, "ALTER TABLE outbox_message ENABLE ROW LEVEL SECURITY")
            return Accepted()

        publish(owner, "a1")
        with pytest.raises(outbox.errors.UnsafeDatabase, match="outbox_message: row-level policies"):
            Relay(app.database.engine(poolclass=NullPool), Recorder(hide)).run_once()


def test_a_pool_of_one_connection(sqlite: Database) -> None:
    """What needs two connections is not tried, and the report says so."""
    report = inbox.check(sqlite.engine(poolclass=StaticPool))
    assert [str(each) for each in report.findings if each.result == "not tried"] == [
        "a key in two transactions: not tried: the pool has no second connection"
    ]
