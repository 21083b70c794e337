"""The cost of publishing in a transaction, and the gain of publishing many messages in one call."""

from collections.abc import Callable

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
    update,
)

from outbox import Message, Outbox

from ._business import new_keys
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
_RAISE = update(account).values(balance=account.c.balance + 1)


def publish(lab: OutboxLab) -> Report:
    """A transaction of three business statements: alone, with a message, or with an equally large row."""
    with lab.outbox("publish") as engine:
        metadata.create_all(engine)
        with engine.begin() as connection:
            rows = [{"id": number, "balance": 0} for number in range(_ACCOUNTS)]
            connection.execute(insert(account), rows)
        variants = {
            "bare": _business(engine, lambda connection: None),
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
