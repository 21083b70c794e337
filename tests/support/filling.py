"""Very many rows, made by the server itself."""

from typing import Any

from sqlalchemy import (
    Engine,
    LargeBinary,
    String,
    Table,
    case,
    cast,
    insert,
    literal,
    null,
    select,
    text,
    union_all,
)
from sqlalchemy.sql.elements import ColumnElement

from inbox import schema
from outbox.schema import tables

TABLES = tables()
TOPICS, FAILED = 20, 301
"""The topics, and the messages of which one has failed."""


def numbers(rows: int) -> ColumnElement[Any]:
    """The numbers from 0 up to `rows`, a power of ten."""
    digits = union_all(*(select(literal(each).label("digit")) for each in range(10))).subquery()
    places = [digits.alias(f"d{place}") for place in range(len(str(rows)) - 1)]
    number: Any = sum(each.c.digit * 10**place for place, each in enumerate(places))
    joined: Any = places[0]
    for each in places[1:]:
        joined = joined.join(each, each.c.digit >= places[0].c.digit - 10)  # always
    return select(number.label("n")).select_from(joined).subquery("numbers").c.n


def fill_outbox(engine: Engine, rows: int) -> None:
    """Messages of some topics, of which a few have failed, and a tenth as many dead letters."""
    n = numbers(rows)
    has_failed = n % FAILED == 7
    content = _content(n) | {
        "attempts": case((has_failed, 1), else_=0),
        "unanswered": case((has_failed, 1), else_=0),
        "state": case((has_failed, literal("unknown")), else_=literal("pending")),
        "error": case((has_failed, literal("no answer")), else_=null()),
    }
    _insert(engine, TABLES.message, content, n)
    more = numbers(rows // 10)
    content = _content(more) | {"attempts": literal(3), "outcome": literal("refused"), "error": literal("no")}
    _insert(engine, TABLES.dead, content, more)
    analyse(engine, TABLES.message, TABLES.dead)


def _content(n: ColumnElement[Any]) -> dict[str, Any]:
    number = cast(n, String(20))
    return {
        "bucket": n % 64,
        "id": literal("m-") + number,
        "topic": literal("topic-") + cast(n % TOPICS, String(20)),
        "key": literal("k-") + cast(n % 1_000, String(20)),
        "payload": literal(b"x" * 50, LargeBinary),
        "content_type": literal("text/plain"),
    }


def _insert(engine: Engine, table: Table, content: dict[str, Any], n: ColumnElement[Any]) -> None:
    with engine.begin() as connection:
        connection.execute(insert(table).from_select([*content], select(*content.values()).order_by(n)))


def analyse(engine: Engine, *tables: Table) -> None:
    """Give the server statistics of these tables; on PostgreSQL, vacuum them too."""
    own = {"postgresql": "VACUUM (ANALYZE)", "sqlite": "ANALYZE"}
    command = own.get(engine.dialect.name, "ANALYZE TABLE")
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        for table in tables:
            connection.execute(text(f"{command} {table.name}"))


def fill_inbox(engine: Engine, rows: int) -> None:
    """Keys of one consumer, and as many dead messages of another one in status-table mode."""
    tables = schema.tables()
    n = numbers(rows)
    number = cast(n, String(20))
    claim = literal(bytes(16), LargeBinary)
    key = {"key": literal("k-") + number, "claim": claim}
    _insert(engine, tables.message, {"consumer": literal("billing"), **key}, n)
    content = {
        "consumer": literal("orders"),
        **key,
        "status": literal("dead"),
        "token": literal(1),
        "owner": literal("worker"),
        "attempts_started": literal(1),
        "attempts_finished": literal(1),
        "error": literal("no"),
    }
    _insert(engine, tables.status, content, n)
    analyse(engine, tables.message, tables.status)
