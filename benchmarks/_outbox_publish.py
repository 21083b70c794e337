"""The cost of publishing in a transaction, for the client, too, and the gain of publishing many messages in
one call."""

from collections.abc import Callable
from typing import Any

from sqlalchemy import (
    Column,
    Connection,
    Engine,
    Identity,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    insert,
    text,
    update,
)

from inbox_outbox_base.databases import relaying_statements
from outbox import Message, Outbox, schema
from outbox.schema import BUCKETS

from ._business import new_keys
from ._cpu import Call, alone, as_grid, driving, in_transactions
from ._measure import Operation, Report, figure, ratios
from ._outbox_lab import OutboxLab
from ._outbox_rows import PAYLOAD, TOPIC

MANY = 1_000
_ACCOUNTS = 1_000
metadata = MetaData()
order = Table("order", metadata, Column("id", Integer, Identity(), primary_key=True), Column("item", Text))
entry = Table("entry", metadata, Column("id", Integer, Identity(), primary_key=True), Column("text", Text))
note = Table(
    "note",
    metadata,
    Column("id", Integer, Identity(), primary_key=True),
    Column("key", Text),
    Column("payload", LargeBinary),
)
account = Table(
    "account",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("balance", Integer, nullable=False),
    postgresql_with={"fillfactor": 50},
)
_BY_HAND = text("INSERT INTO note (key, payload) VALUES (:key, :payload)")
_RAISE = update(account).values(balance=account.c.balance + 1)


def publish(lab: OutboxLab) -> Report:
    """A transaction of three business statements: alone, with a message, or with an equally large row."""
    with lab.outbox("publish") as engine:
        metadata.create_all(engine)
        _open_accounts(engine)
        variants = {
            "bare": _business(engine, _nothing),
            "wake": _business(engine, _publishing(Outbox())),
            "silent": _business(engine, _publishing(Outbox(wake=False))),
            "fourth": _business(engine, _noting()),
        }
        rates = lab.lab.compare("publish in a transaction", variants, turns=2)
    what = "time of three statements"
    return Report(
        [
            figure(f"{what} + publish / without", ratios(rates, "bare", "wake"), at_most=1.15),
            figure(f"{what} + publish, wake=False / without", ratios(rates, "bare", "silent")),
            figure(f"{what} + a plain INSERT / without", ratios(rates, "bare", "fourth")),
        ]
    )


def cpu(lab: OutboxLab) -> Report:
    """The client's CPU for `publish` in an open transaction, against a text INSERT of as many bytes, with the
    limits of `_accepts.cpu`; and for a transaction of three statements with it and without."""
    numbers = new_keys()
    with lab.outbox("publish_cpu") as engine:
        metadata.create_all(engine)
        _open_accounts(engine)
        ours = str(relaying_statements.add(schema.tables()).compile(dialect=engine.dialect))

        def plain() -> dict[str, Any]:
            return {"key": f"order-{next(numbers)}", "payload": PAYLOAD}

        def row() -> dict[str, Any]:
            number = next(numbers)
            about = {"id": f"{number:036}", "topic": TOPIC, "bucket": number % BUCKETS}
            return plain() | about | {"content_type": "application/octet-stream", "headers": None}

        single: dict[str, Call] = {
            "publish": _publishing(Outbox()),
            "text": lambda connection: connection.execute(_BY_HAND, plain()),
            "same": lambda connection: connection.exec_driver_sql(ours, row()),
            "driver": driving(_BY_HAND, engine, plain),
        }
        micros = in_transactions(lab.lab, "client CPU of publish", engine, single)
        whole = {"bare": _nothing, "publish": single["publish"], "fourth": _noting()}
        operations = {name: _business(engine, each) for name, each in whole.items()}
        added = alone(lab.lab, "client CPU of a transaction with publish", operations)
    what, three = "client CPU in an open transaction", "client CPU of three statements"
    return Report(
        [
            figure(f"{what}: publish / text INSERT", ratios(micros, "publish", "text"), at_most=1.4),
            figure(f"{what}: its statement by exec_driver_sql / same", ratios(micros, "same", "text")),
            figure(f"{what}: text INSERT by psycopg alone / same", ratios(micros, "driver", "text")),
            figure(f"{three} + publish / without", ratios(added, "publish", "bare"), at_most=1.25),
            figure(f"{three} + a plain INSERT / without", ratios(added, "fourth", "bare")),
        ],
        [as_grid("publish", micros), as_grid("a transaction", added)],
    )


def many(lab: OutboxLab) -> Report:
    """`publish_many` of a thousand against a thousand single calls, in one transaction and in one each."""
    with lab.outbox("many") as engine:
        variants = {
            "many": _many(engine, Outbox()),
            "one transaction": _singly(engine, Outbox()),
            "own transactions": _alone(engine, Outbox()),
        }
        rates = lab.lab.compare(f"publish_many of {MANY:,}", variants)
    name = f"publish_many of {MANY:,} / publish"
    return Report(
        [
            figure(f"{name}, each in its own transaction", _gain(rates, "own transactions"), at_least=20),
            figure(f"{name}, all in one transaction", _gain(rates, "one transaction"), at_least=20),
        ]
    )


def _gain(rates: dict[str, list[float]], base: str) -> list[float]:
    return ratios(rates, "many", base)


def _open_accounts(engine: Engine) -> None:
    with engine.begin() as connection:
        rows = [{"id": number, "balance": 0} for number in range(_ACCOUNTS)]
        connection.execute(insert(account), rows)


def _nothing(_: Connection) -> None:
    """A transaction without a message."""


def _business(engine: Engine, publish: Callable[[Connection], object]) -> Operation:
    numbers = new_keys()

    def work(_: int) -> int:
        with engine.begin() as connection:
            connection.execute(insert(order), {"item": "a book"})
            connection.execute(insert(entry), {"text": "ordered"})
            number = next(numbers) % _ACCOUNTS
            connection.execute(_RAISE.where(account.c.id == number))
            publish(connection)
        return 1

    return work


def _publishing(outbox: Outbox) -> Callable[[Connection], object]:
    numbers = new_keys()
    return lambda connection: outbox.publish(connection, TOPIC, PAYLOAD, f"order-{next(numbers)}")


def _noting() -> Callable[[Connection], object]:
    numbers = new_keys()
    added = insert(note)
    return lambda connection: connection.execute(added, {"key": f"order-{next(numbers)}", "payload": PAYLOAD})


def _many(engine: Engine, outbox: Outbox) -> Operation:
    numbers = new_keys()

    def work(_: int) -> int:
        messages = [Message(TOPIC, PAYLOAD, f"order-{next(numbers)}") for _ in range(MANY)]
        with engine.begin() as connection:
            outbox.publish_many(connection, messages)
        return MANY

    return work


def _singly(engine: Engine, outbox: Outbox) -> Operation:
    publish = _publishing(outbox)

    def work(_: int) -> int:
        with engine.begin() as connection:
            for _ in range(MANY):
                publish(connection)
        return MANY

    return work


def _alone(engine: Engine, outbox: Outbox) -> Operation:
    publish = _publishing(outbox)

    def work(_: int) -> int:
        with engine.begin() as connection:
            publish(connection)
        return 1

    return work
