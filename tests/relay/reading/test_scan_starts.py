"""On databases that do not report which transactions are writing, messages that cannot be sent yet are not
read again; no message that appears below them is overlooked."""

from typing import Any

import pytest
from sqlalchemy import Connection, Engine, delete, event, insert, select

from inbox_outbox_base.databases.letter import Letter
from inbox_outbox_base.databases.registry import relaying
from outbox import Outbox, Relay
from outbox._relaying.reading import scan_starts as skipping
from outbox._relaying.reading.scanning import Scanner
from outbox._relaying.report import Report
from outbox._relaying.sending.lanes import TopicLanes
from outbox._relaying.settings import RelaySettings
from outbox.schema import BUCKETS
from tests.support.database import Database
from tests.support.on_servers import on, spread
from tests.support.outbox_publishers import TABLES, Recorder, messages, publish

HELD = 6_400
PAUSED: dict[str, Any] = {"topic": "slow", "state": "pending", "error": None}
SERVERS = ("sqlite", "mariadb", "mysql")
"""The databases that do not report which transactions are writing."""

NEVER = 1e9
"""In seconds. As a `_SHARE`, it makes counting happen only when something is to be sent."""


class Looks:
    """The scans of a relay's buckets, all on one connection."""

    def __init__(self, engine: Engine) -> None:
        database = relaying(engine.dialect.name, TABLES)
        self._engine = engine.execution_options(isolation_level=database.own_isolation)
        settings: RelaySettings = Relay(engine, Recorder())._settings
        self.scanner = Scanner(settings, database, TopicLanes(100, 1))
        self.scanner.own([*range(BUCKETS)])
        self.given = self.cost = 0
        self.letters: list[Letter] = []
        """The messages that would be sent."""

    def look(self) -> list[str]:
        """Scan; return the names of `letters`. `given` is the number of values in the statements, and `cost`
        adds the number of rows read."""
        self.given = 0

        def count(*args: Any) -> None:
            self.given += len(args[3])

        with self._engine.connect() as connection:
            read = _rows_read(connection)
            event.listen(connection, "before_cursor_execute", count)
            choice = self.scanner.choose(connection)
            while choice.has_more and not choice.letters:
                choice = self.scanner.choose(connection)
            event.remove(connection, "before_cursor_execute", count)
            self.cost = self.given + _rows_read(connection) - read
        self.letters = choice.letters
        return [(letter.payload or b"").decode() for letter in self.letters]


def _rows_read(connection: Connection) -> int:
    """The number of rows this session has read; SQLite does not count them."""
    if connection.dialect.name == "sqlite":
        return 0
    found = connection.exec_driver_sql("SHOW SESSION STATUS LIKE 'Handler_read%%'")
    return sum(int(value) for name, value in found if not name.startswith("Handler_read_rnd"))


def hold(engine: Engine, places: list[tuple[int, int]], **other: Any) -> None:
    """Insert messages that wait for an operator, at these places (bucket and sequence)."""
    held = {"topic": "orders", "payload": b"", "content_type": "x", "state": "held", "error": "no", **other}
    rows = [
        {"bucket": bucket, "sequence": number, "id": str(number), "key": str(number)} | held
        for bucket, number in places
    ]
    with engine.begin() as connection:
        connection.execute(insert(TABLES.message), rows)


def appear(engine: Engine, bucket: int, *numbers: int) -> None:
    """Insert new messages with these sequences, as if their transactions had been open until now."""
    hold(engine, [(bucket, number) for number in numbers], state="pending", error=None, payload=b"late")


def drop(engine: Engine, *numbers: int) -> None:
    """An operator drops messages."""
    with engine.begin() as connection:
        connection.execute(delete(TABLES.message).where(TABLES.message.c.sequence.in_(numbers)))


@pytest.fixture(autouse=True)
def _not_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """No bucket becomes due to be read again, however slow the machine is."""
    monkeypatch.setattr(skipping, "_EVERY", NEVER)


@pytest.mark.mysql
@spread("why", ["held", "paused"], where=SERVERS)
def test_waiting_messages_are_not_read_again(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """While thousands of messages wait in all buckets, a scan reads few of them, even if it finds a message
    to send in one of the buckets."""
    monkeypatch.setattr(skipping, "_SHARE", NEVER)
    looks = Looks(engine)
    looks.scanner.pause(["slow"])
    other = PAUSED if why == "paused" else {}
    hold(engine, [(number % BUCKETS, number) for number in range(1, HELD + 1)], **other)
    assert looks.look() == looks.look() == []
    assert looks.cost < HELD / 5
    publish(engine, "a1")
    assert looks.look() == ["a1"]
    assert looks.cost < HELD / 5


@pytest.mark.mysql
@on("mariadb", "mysql")
def test_statistics_from_an_empty_table(engine: Engine) -> None:
    """With statistics gathered while the table was empty, as is usual for an outbox, a scan of one bucket
    does not read other buckets."""
    with engine.connect() as connection:
        connection.exec_driver_sql("ANALYZE TABLE outbox_message").all()
        hold(engine, [(number % BUCKETS, number) for number in range(1, HELD + 1)])
        connection.exec_driver_sql("FLUSH TABLES outbox_message")  # so that the statistics are read again
    looks = Looks(engine)
    assert looks.look() == []
    assert looks.cost < 5 * HELD


@pytest.mark.mysql
@on(*SERVERS)
def test_a_paused_topic_that_grows(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each scan reads only the messages that were added. The count of skipped messages does not mistake them
    for messages that have appeared below, so nothing is read again."""
    monkeypatch.setattr(skipping, "_SHARE", NEVER)
    looks = Looks(engine)
    looks.scanner.pause(["slow"])
    publish(engine, "a1", topic="slow")
    with engine.connect() as connection:
        place = connection.execute(select(TABLES.message)).one()
    behind = range(place.sequence + 1, place.sequence + HELD)
    hold(engine, [(place.bucket, number) for number in behind], **PAUSED)
    assert looks.look() == []
    for name in ("a2", "a4"):
        publish(engine, "a3", topic="slow")
        publish(engine, name)
        assert name in looks.look()
        assert looks.cost < 1.5 * HELD  # skipped messages are counted once, because a message is sent


@on(*SERVERS)
def test_a_paused_topic_that_is_resumed(engine: Engine) -> None:
    """After a paused topic is resumed, all its messages are found in order, including the ones added during
    the pause."""
    looks = Looks(engine)
    looks.scanner.pause(["slow"])
    hold(engine, [(3, number) for number in range(1, 400)], **PAUSED | {"payload": b"before"})
    assert looks.look() == looks.look() == []
    hold(engine, [(3, number) for number in range(400, 405)], **PAUSED | {"payload": b"since"})
    assert looks.look() == []
    looks.scanner.pause([])
    found: list[str] = []
    while names := looks.look():
        found += names
        drop(engine, *(letter.sequence for letter in looks.letters))
        looks.scanner.settle(Report(accepted=looks.letters))
    assert found == ["before"] * 399 + ["since"] * 5


@on("mariadb", "mysql")
def test_a_message_that_appears_while_a_scan_ends(
    migrated: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message that is committed below those of a paused topic is found even if it appears after a scan has
    passed its place and before the scan counts what it has skipped."""
    monkeypatch.setattr(skipping, "_SHARE", 0)
    engine = migrated.engine()
    late = [21]

    @event.listens_for(engine, "before_cursor_execute")
    def appear_late(*args: Any) -> None:
        if "max(outbox_message.sequence)" in args[2] and late:
            appear(migrated.engine(), 3, late.pop())

    looks = Looks(engine)
    looks.scanner.pause(["slow"])
    hold(engine, [(3, number) for number in range(10, 4_000, 10)], **PAUSED)
    assert looks.look() == ["late"]
    assert not late


@spread("also", ["nothing else", "paused", "dropped", "dropped now"], where=SERVERS)
def test_a_message_that_appears_below(engine: Engine, monkeypatch: pytest.MonkeyPatch, also: str) -> None:
    """Counting finds a message that appears below the skipped ones, whatever other messages are unknown or
    gone. It is read once."""
    monkeypatch.setattr(skipping, "_SHARE", 0)
    hold(engine, [(3, number) for number in range(10, 20_000, 10)])
    looks = Looks(engine)
    if also == "paused":
        looks.scanner.pause(["slow"])
        hold(engine, [(3, number) for number in range(5, 20_000, 10)], topic="slow")
    assert looks.look() == []
    if also == "dropped":
        drop(engine, 20, 30)
        assert looks.look() == []
    assert looks.look() == []
    assert looks.given < 1_000
    if also == "dropped now":
        drop(engine, 20)
    appear(engine, 3, 21)
    assert looks.look() == ["late"]


@on("sqlite")
def test_counting_takes_little_of_the_time(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counting is limited to a small share of the time: a message is not found before the next count is due,
    and the relay looks again at that time."""
    monkeypatch.setattr(skipping, "_SHARE", NEVER)
    hold(engine, [(3, number) for number in range(10, 4_000, 10)])
    looks = Looks(engine)
    assert looks.look() == []
    appear(engine, 3, 21)
    assert looks.look() == []
    assert 0 < looks.scanner._skips.seconds() < NEVER * 100


@on("sqlite")
def test_each_bucket_is_read_again(engine: Engine) -> None:
    """If as many messages appear as were dropped, with the same sum of sequences, counting cannot find them,
    but each bucket is read again in time. A scan before that time reads only some of the buckets."""
    hold(engine, [(3, number) for number in range(10, 4_000, 10)])
    looks = Looks(engine)
    assert looks.look() == looks.look() == []
    drop(engine, 20, 30)
    appear(engine, 3, 21, 29)
    assert looks.look() == []
    skips = looks.scanner._skips
    skips._reread_at -= skipping._EVERY / 2
    skips.begin()
    assert BUCKETS / 2 - 1 <= BUCKETS - len(skips._ends) < BUCKETS
    skips._reread_at -= skipping._EVERY
    assert looks.look() == ["late", "late"]


@on("mariadb", "mysql")
def test_the_order_of_a_key(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction draws a sequence below those of waiting messages and commits after they were read: the
    next message of its key does not overtake it."""
    monkeypatch.setattr(skipping, "_SHARE", NEVER)
    publish(engine, "a0")
    with engine.begin() as connection:
        place = connection.execute(select(TABLES.message)).one()
        connection.execute(delete(TABLES.message))
    looks = Looks(engine)
    with engine.connect() as slow:
        Outbox().publish_many(slow, messages(["a1"]))
        hold(engine, [(place.bucket, place.sequence + 1_000 + number) for number in range(400)])
        assert looks.look() == []
        slow.commit()
        publish(engine, "a2")
        assert looks.look() == ["a1", "a2"]
