"""The code of docs/moving.md, docs/cap.md and docs/rocketmq-dedup.md, run as these pages say: old and new
programs are there at the same time, messages come several times, and each takes effect once."""

import json
import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
import redis
from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    DateTime,
    Engine,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    insert,
    select,
    text,
)
from sqlalchemy.dialects.mysql import LONGTEXT

from inbox import Inbox, is_transient
from inbox.errors import TransientError
from tests import servers
from tests.support import accounts
from tests.support.database import Database
from tests.support.moving import NEW, WORKERS, Pages, assert_once, deliver, orders
from tests.support.on_servers import BOTH_MYSQL, on
from tests.support.outbox_publishers import TABLES, Recorder, relay
from tests.support.present import present
from tests.support.together import Task, together

KEYS = [f"order-{number}" for number in range(60)]
IGNORE = [("INSERT INTO", "INSERT IGNORE INTO"), (" ON CONFLICT DO NOTHING", "")]
"""What MySQL and MariaDB say instead."""


def test_from_a_table_of_ones_own(migrated: Database) -> None:
    """Old and both, both while keys are carried over, both and new, new, and all the way back: messages come
    again in each step, also those of the steps before, and each has taken effect once."""
    engine = accounts.make(migrated.engine(pool_size=WORKERS + 2), KEYS)
    with engine.begin() as connection:
        columns = "message_id VARCHAR(64) PRIMARY KEY, processed_at TIMESTAMP NULL"
        connection.execute(text(f"CREATE TABLE processed_messages ({columns})"))
    pages, written = Pages(engine), IGNORE if engine.dialect.name == "mysql" else []
    pages.run("def carry_over")
    new, both = pages.run("OLD =", *written, NEW), pages.run("OLD =", *written)

    def old(message: dict[str, str]) -> None:
        with engine.begin() as connection:
            if connection.execute(text(pages.names["OLD"]), message).rowcount:
                accounts.add(connection, message["id"])

    deliver(orders(KEYS[:10]), old)
    deliver(orders(KEYS[5:20], 3), old, both)
    together([lambda: deliver(orders(KEYS[5:30], 2), both), lambda: pages.run("taken = ")])
    deliver(orders(KEYS[:41], 3), both, new)
    deliver(orders(KEYS[:45], 2), new)
    assert_once(engine, KEYS[:45])
    deliver(orders(KEYS[:51], 2), both, new)
    together([lambda: deliver(orders(KEYS[:53], 2), both), lambda: pages.run("rows = ")])
    deliver(orders(KEYS[:59], 3), old, both)
    deliver(orders(KEYS), old)
    assert_once(engine, KEYS)


def test_from_an_outbox_of_ones_own(migrated: Database) -> None:
    """Old and new producers write at the same time as the job that moves rows: every message leaves once, and
    those of a key leave in the order of their transactions."""
    engine = accounts.make(migrated.engine(pool_size=WORKERS + 2), KEYS[:3])
    outgoing = Table(
        "outgoing",
        MetaData(),
        Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
        Column("topic", String(64)),
        Column("key", String(64), index=True),
        Column("payload", Text),
        Column("message_id", String(64), default=lambda: f"old-{uuid4()}"),
    )
    outgoing.create(engine)
    pages, over = Pages(engine), threading.Event()
    pages.run("def move")

    def insert_order(connection: Connection, key: str) -> None:
        connection.execute(select(outgoing)).all()  # on MySQL, further reads without a lock see no newer rows
        accounts.add(connection, key)

    pages.names["insert_order"] = insert_order

    def old(connection: Connection, key: str) -> None:
        accounts.add(connection, key)  # from here on, the transactions of a key take turns
        number = connection.scalar(select(accounts.Account.total).where(accounts.Account.name == key))
        connection.execute(insert(outgoing).values(topic="orders", key=key, payload=str(number)))

    def produce(way: Callable[[Connection, str], object]) -> None:
        for key in KEYS[:3] * 15:
            again(lambda key=key: in_transaction(engine, lambda connection: way(connection, key)))  # type: ignore[misc]

    def job() -> None:
        is_last = False
        while again(lambda: in_transaction(engine, pages.names["move"])) or not is_last:
            is_last = over.wait(0.01)  # then nobody writes to the old table, but it may have rows

    moving = Task(job)
    together([lambda: produce(old), lambda: produce(pages.names["place"])] * 2)
    over.set()
    moving.result()
    publisher = Recorder()
    assert relay(engine, publisher) == 4 * 45
    for key in KEYS[:3]:
        sent = publisher.of(key)
        assert sent.count(key) == 30  # the new producers' payload
        assert [(at, name) for at, name in enumerate(sent, 1) if name not in (key, str(at))] == []
    ids = [message.id for message in publisher.accepted]
    assert sum(each.startswith("old-") for each in ids) == len({*ids}) / 2 == 90


def in_transaction(engine: Engine, work: Callable[[Connection], Any]) -> Any:
    """What the function returns, in a transaction of its own."""
    with engine.begin() as connection:
        return work(connection)


def again(work: Callable[[], Any]) -> Any:
    """What the function returns, tried again after deadlocks."""
    while True:
        try:
            return work()
        except Exception as error:
            if not is_transient(error):
                raise


@on("postgresql", *BOTH_MYSQL)
def test_from_cap(migrated: Database) -> None:
    """What CAP has handled is a duplicate, and what waits in its tables is handled or sent once. A row that
    cannot be read stops the move before anything is sent, and the move can be repeated."""
    engine = accounts.make(migrated.engine(), KEYS)
    received, published = cap_tables(engine)
    soon = datetime.now().replace(microsecond=0) + timedelta(hours=1)  # noqa: DTZ005 - CAP stores local times
    taken = {"Version": "v1", "Name": "order.paid", "Group": "billing.v1", "Retries": 0, "Added": soon}
    sent = {key: taken[key] for key in ("Version", "Name", "Retries", "Added")}
    rows = {
        1: ("Succeeded", content(KEYS[1], "101")),
        2: ("Scheduled", content(KEYS[2], "102")),
        3: ("Scheduled", content(KEYS[1], "103")),  # sent again, and taken again
        4: ("Failed", content(KEYS[4], "104", **{"cap-exception": "Timeout-->"})),
        5: ("Failed", json.dumps({"Headers": {"cap-msg-id": "105"}, "Value": "data:UnknownType;base64,"})),
    }
    with engine.begin() as connection:
        for number, (status, body) in rows.items():
            row = taken | {"Id": number, "StatusName": status, "Content": body}
            connection.execute(insert(received).values(row))
        elsewhere = taken | {"Id": 6, "Group": "stock.v1", "StatusName": "Succeeded"}
        connection.execute(insert(received).values(elsewhere | {"Content": content(KEYS[6], "106")}))
        for number, status in enumerate(["Succeeded", "Scheduled", "Failed", "Delayed"], 201):
            row = sent | {"Id": number, "StatusName": status, "ExpiresAt": soon}
            connection.execute(insert(published).values(row | {"Content": content(KEYS[7], str(number))}))
    pages = Pages(engine)
    pages.run("def carry_over")
    names = [(f'"{each}", MetaData(), schema="cap"', f'"cap.{each}", MetaData()') for each in TABLES_OF_CAP]
    changes = names if engine.dialect.name == "mysql" else []
    with pytest.raises(TypeError):
        pages.run("def as_delivered", *changes, page="cap.md")
    assert [number for number, _ in statuses(engine, published)] == [201, 202, 203, 204]
    with engine.begin() as connection:
        connection.execute(received.delete().where(received.c.Id == 5))
    for _ in range(2):
        pages.run("def as_delivered", *changes, page="cap.md")
        assert statuses(engine, published) == [(201, "Succeeded")]
        assert {status for _, status in statuses(engine, received)} == {"Succeeded"}
    assert_once(engine, [KEYS[2], KEYS[4]])

    def delivered(order: str) -> str:
        row = SimpleNamespace(Content=content(order, "7"), Name="order.paid")
        return str(pages.names["bill"](pages.names["as_delivered"](row)).verdict.name)

    assert [delivered(KEYS[number]) for number in (1, 2, 6)] == ["DUPLICATE", "DUPLICATE", "NEW"]

    publisher = Recorder()
    assert relay(engine, publisher) == 2
    assert [(each.id, each.topic, each.headers["cap-msg-id"]) for each in publisher.accepted] == [
        ("202", "order.paid", "202"),
        ("203", "order.paid", "203"),
    ]
    assert json.loads(publisher.accepted[0].payload) == {"OrderId": KEYS[7]}
    assert "cap-callback-name" not in publisher.accepted[0].headers
    with engine.connect() as connection:
        delayed = connection.execute(select(TABLES.delayed.c.id, TABLES.delayed.c.available_at)).all()
    assert delayed == [("204", soon.astimezone())]


TABLES_OF_CAP = ("received", "published")


def cap_tables(engine: Engine) -> list[Table]:
    """Tables with the names and the columns of CAP's."""
    mysql = engine.dialect.name == "mysql"
    metadata = MetaData(schema=None if mysql else "cap")
    if not mysql:
        with engine.begin() as connection:
            connection.execute(text("CREATE SCHEMA cap"))

    def table(name: str, *own: Column[Any]) -> Table:
        return Table(
            f"cap.{name}" if mysql else name,
            metadata,
            Column("Id", BigInteger, primary_key=True, autoincrement=False),
            Column("Version", String(20)),
            Column("Name", String(200), nullable=False),
            *own,
            Column("Content", Text().with_variant(LONGTEXT, "mysql")),
            Column("Retries", Integer),
            Column("Added", DateTime, nullable=False),
            Column("ExpiresAt", DateTime),
            Column("StatusName", String(50), nullable=False),
        )

    found = [table("received", Column("Group", String(200))), table("published")]
    metadata.create_all(engine)
    return found


def content(order: str, number: str, **headers: str) -> str:
    """A message as CAP stores it."""
    known = {"cap-msg-id": number, "cap-msg-name": "order.paid", "cap-callback-name": None}
    return json.dumps({"Headers": known | headers, "Value": {"OrderId": order}})


def statuses(engine: Engine, table: Table) -> list[Any]:
    """The rows of a table of CAP's."""
    with engine.connect() as connection:
        return [*connection.execute(select(table.c.Id, table.c.StatusName).order_by(table.c.Id))]


@on("sqlite", "mariadb")
def test_from_rocketmq_dedup_listener(migrated: Database) -> None:
    """What was consumed is a duplicate. What was being consumed, or belongs to another application or topic,
    is new."""
    engine = migrated.engine()
    with engine.begin() as connection:
        names = ("application_name", "topic", "tag", "msg_uniq_key", "status")
        columns = ", ".join(f"{name} VARCHAR(64) NOT NULL" for name in names)
        connection.execute(text(f"CREATE TABLE t_rocketmq_dedup ({columns}, expire_time BIGINT NOT NULL)"))
        connection.execute(
            text("INSERT INTO t_rocketmq_dedup VALUES (:application, :topic, '', :key, :status, 0)"),
            [
                {"application": application, "topic": topic, "key": key, "status": status}
                for application, topic, key, status in [
                    ("billing", "orders", "1", "CONSUMED"),
                    ("billing", "orders", "2", "CONSUMING"),
                    ("stock", "orders", "3", "CONSUMED"),
                    ("billing", "returns", "4", "CONSUMED"),
                ]
            ],
        )
    pages = Pages(engine)
    pages.run("def carry_over")
    pages.run("CONSUMED = ", page="rocketmq-dedup.md")
    with engine.begin() as connection:
        verdicts = Inbox("billing").accept_many(connection, ["1", "2", "3", "4"])
    assert [verdict.name for verdict in verdicts] == ["DUPLICATE", "NEW", "NEW", "NEW"]


def test_from_a_lock_in_redis(postgres: Database) -> None:
    """Old and both, both until the locks of the old version have expired, both and new: messages come again
    in each step, some fail the first time, and each has taken effect once."""
    place = present("redis", servers.find_redis())
    engine = accounts.make(postgres.engine(pool_size=WORKERS), KEYS)
    names = {key: f"{uuid4()}" for key in KEYS}
    keys = {name: key for key, name in names.items()}
    failed = set[str]()

    def write(connection: Connection, name: str) -> None:
        accounts.add(connection, keys[name])
        if keys[name] in KEYS[::4] and name not in failed:
            failed.add(name)
            raise ValueError(name)

    def failing(version: Callable[[str], Any]) -> Callable[[dict[str, str]], Any]:
        def handle(message: dict[str, str]) -> Any:
            try:
                return version(names[message["id"]])
            except ValueError as error:
                raise TransientError(f"{error}: deliver it again") from error

        return handle

    with redis.Redis.from_url(place.url) as locks:

        def old(name: str) -> None:
            if locks.set(f"billing:{name}", 1, nx=True, ex=3600):
                try:
                    with engine.begin() as connection:
                        write(connection, name)
                except ValueError:
                    locks.delete(f"billing:{name}")
                    raise

        pages = Pages(engine)
        pages.names["insert_order"] = write
        pages.run("def carry_over")
        bill = pages.run("OLD =", NEW)
        pages.run("def bill_order(id)", ('Redis("redis")', f'Redis.from_url("{place.url}")'))
        both, new = failing(pages.names["bill_order"]), failing(lambda name: bill({"id": name}))
        deliver(orders(KEYS[:21], 3), failing(old), both)
        deliver(orders(KEYS[:40], 2), both)
        assert_once(engine, KEYS[:40])
        locks.delete(*(f"billing:{names[key]}" for key in KEYS[:21]))  # an hour later
        deliver(orders(KEYS[21:], 3), both, new)
        deliver(orders(KEYS[21:], 1), new)
        assert_once(engine, KEYS)
        locks.delete(*(f"billing:{name}" for name in keys))
        pages.names["locks"].close()
