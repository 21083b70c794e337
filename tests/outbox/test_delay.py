"""Delayed messages are due by the database's clock, and are then sent in order."""

import time
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from sqlalchemy import Engine, select, update

from inbox.schema import utcnow
from outbox import Message, Outbox, schema
from tests.support.database import Database
from tests.support.on_servers import on, spread
from tests.support.published import TOPIC, WAYS, Way, texts, waiting

OUTBOX = Outbox()
DELAYED = schema.tables().delayed
EAST, WEST = timezone(timedelta(hours=14)), timezone(timedelta(hours=-11, minutes=-30))

every_way = spread("way", [WAYS[name] for name in ("connection", "session", "session on a connection")])


@pytest.fixture
def engine(migrated: Database) -> Engine:
    """A database with an outbox."""
    return migrated.engine()


def clock(engine: Engine) -> datetime:
    """The time by the database's clock."""
    with engine.connect() as connection:
        now: datetime = connection.execute(select(utcnow())).scalar_one()
        return now


def due(engine: Engine) -> dict[str, datetime]:
    """When each delayed message is due."""
    with engine.connect() as connection:
        rows = connection.execute(select(DELAYED.c.payload, DELAYED.c.available_at))
        return {row.payload.decode(): row.available_at for row in rows}


def eventually(engine: Engine, many: int) -> list[str]:
    """Wait until relays have found this many messages; return them."""
    found: list[str] = []
    deadline = time.monotonic() + 30
    while len(found) < many and time.monotonic() < deadline:
        found += texts(engine)
    return found


@every_way
def test_a_delay_is_counted_by_the_database(engine: Engine, way: Way) -> None:
    """A message is due at the time of the database's clock when the row is written, plus the delay."""
    delays: dict[str, Any] = {
        "3600": 3600,
        "0.5": 0.5,
        "90.25": timedelta(seconds=90.25),
        "3153600000": timedelta(days=36_500),
    }
    before = clock(engine)
    with way(engine) as handle:
        for name, delay in delays.items():
            OUTBOX.publish(handle, TOPIC, name, delay=delay)
    after, found = clock(engine), due(engine)
    assert found.keys() == delays.keys()
    for name, available_at in found.items():
        delay = timedelta(seconds=float(name))
        assert before + delay - timedelta(milliseconds=2) <= available_at <= after + delay
    assert waiting(engine) == []


@every_way
def test_a_message_is_sent_once_it_is_due(engine: Engine, way: Way) -> None:
    """A delayed message waits while others of its key are sent; when it is due, it is sent once, with the id
    that `publish` returned."""
    with way(engine) as handle:
        late = OUTBOX.publish(handle, TOPIC, "late", key="k", delay=60)
        OUTBOX.publish(handle, TOPIC, "at once", key="k")
    assert texts(engine) == ["at once"]
    with engine.connect() as connection:
        assert connection.scalars(select(DELAYED.c.id)).all() == [late]
    with engine.begin() as connection:
        soon = timedelta(seconds=0.5)
        connection.execute(update(DELAYED).values(available_at=clock(engine) + soon))
    assert eventually(engine, 1) == ["late"]
    assert due(engine) == {}
    assert texts(engine) == []


@every_way
def test_a_point_in_time_has_a_zone(engine: Engine, way: Way) -> None:
    """One moment given in different time zones is stored as the same due time."""
    moment = datetime(2124, 2, 29, 23, 59, 59, 123456, tzinfo=UTC)
    with way(engine) as handle:
        for zone in (UTC, EAST, WEST):
            OUTBOX.publish(handle, TOPIC, str(zone), available_at=moment.astimezone(zone))
    assert due(engine) == {str(zone): moment for zone in (UTC, EAST, WEST)}


@every_way
def test_a_time_that_has_passed_is_due(engine: Engine, way: Way) -> None:
    """A message with a delay of zero, or with a due time in the past, is sent in the next round."""
    past: dict[str, datetime] = {
        "a moment": clock(engine) - timedelta(milliseconds=10),
        "years": datetime(1999, 12, 31, 23, 59, tzinfo=EAST),
    }
    with way(engine) as handle:
        for name, available_at in past.items():
            OUTBOX.publish(handle, TOPIC, name, available_at=available_at)
        OUTBOX.publish(handle, TOPIC, "nothing", delay=0)
        OUTBOX.publish(handle, TOPIC, "no time", delay=timedelta(0))
    assert [row.payload for row in waiting(engine)] == [b"nothing", b"no time"]
    assert sorted(eventually(engine, 4)) == ["a moment", "no time", "nothing", "years"]


@on("sqlite")
def test_many_with_and_without_a_delay(engine: Engine) -> None:
    """`publish_many` accepts messages with and without a delay, and returns their ids in the given order."""
    messages = [
        Message(TOPIC, "0"),
        Message(TOPIC, "1", delay=60),
        Message(TOPIC, "2", available_at=datetime(2124, 1, 1, tzinfo=UTC)),
        Message(TOPIC, "3"),
    ]
    with engine.begin() as connection:
        ids = OUTBOX.publish_many(connection, messages)
    with engine.connect() as connection:
        later = dict(connection.execute(select(DELAYED.c.payload, DELAYED.c.id)).all())
    now = {row.payload: row.id for row in waiting(engine)}
    assert (now | later) == {b"0": ids[0], b"1": ids[1], b"2": ids[2], b"3": ids[3]}
    assert len(now) == len(later) == 2


def test_the_ends_of_the_calendar(migrated: Database) -> None:
    """The latest time that Python has can be stored, and the message is not sent."""
    engine = migrated.engine()
    with engine.begin() as connection:
        OUTBOX.publish(connection, TOPIC, "last", available_at=datetime.max.replace(tzinfo=UTC))
    assert due(engine) == {"last": datetime.max.replace(tzinfo=UTC)}
    assert texts(engine) == []
