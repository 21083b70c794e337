"""How PostgreSQL reads the outbox: by the index, without reading sent messages again, and without overlooking
anything."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, event, func, insert, select, text

from outbox import Envelope, Outbox, Outcome, Relay, Unavailable, pause, resume, retry_all
from outbox._relaying.settings import RelaySettings
from outbox.schema import BUCKETS
from tests.support.database import Database
from tests.support.outbox_publishers import (
    ACCEPTED,
    TABLES,
    Ordered,
    Recorder,
    publish,
)
from tests.support.processes import wait_until
from tests.support.relay.crashes import running

pytestmark = pytest.mark.mysql

MANY = 200_000
LEFT = 20_000


@pytest.fixture
def always_tends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Relays of this process check which transactions are writing before every batch."""
    monkeypatch.setattr(RelaySettings, "tend_every", 0)


class Some(Recorder):
    """A publisher that stops its relay after the given number of batches."""

    def __init__(self, batches: int) -> None:
        super().__init__()
        self.left = batches
        self.stop: Callable[[], None] = lambda: None

    def send(self, batch: Sequence[Envelope]) -> Iterable[Outcome]:
        self.left -= 1
        if self.left == 0:
            self.stop()
        return super().send(batch)


@pytest.mark.long(but_on="True")
@pytest.mark.parametrize("analysed", [False, True])
def test_a_plan_from_an_empty_table(postgres: Database, analysed: bool) -> None:
    """Cached statements that were planned while the table was empty still read by the primary key when
    hundreds of thousands of messages wait and the table has not been analyzed since. They never read the
    whole table, and read few more rows than are sent."""
    engine = postgres.engine(pool_size=1, max_overflow=0)
    _forbid_analysis(engine)
    publisher = Some(batches=-1)
    once = Relay(engine, publisher)
    for number in range(40):
        _add(engine, [("outbox", number % BUCKETS)])
        assert once.run_once() == 1
    if analysed:  # the table has pages, but no rows
        with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
            connection.exec_driver_sql("VACUUM (ANALYZE, TRUNCATE off) outbox_message")
        engine.dispose()
    with engine.begin() as connection:
        _add_many(connection)
    publisher.left, publisher.stop = 20, once.stop
    sent = once.run_once() + 40
    assert sent > 5_000
    engine.dispose()
    found = _statistics(postgres.engine(), sent)
    assert found.seq_scan == 0
    assert found.idx_tup_fetch < 4 * sent


@pytest.mark.usefixtures("always_tends")
def test_sent_messages_are_not_read_again(postgres: Database) -> None:
    """While an old transaction prevents vacuum from removing the rows of sent messages, a scan starts behind
    them."""
    engine = postgres.engine()
    _forbid_analysis(engine)
    scans: list[tuple[str, Any]] = []

    @event.listens_for(engine, "before_cursor_execute")
    def note(_: Any, __: Any, statement: str, parameters: Any, *___: Any) -> None:
        if "LATERAL" in statement:
            scans.append((statement, parameters))

    with _old_transaction(postgres.engine()):
        publish(engine, *(f"-{number}" for number in range(LEFT)))
        assert Relay(engine, Recorder()).run_once() == LEFT
        statement, parameters = scans[-1]
        low_water = _buffers(postgres.engine(), statement, parameters)
        lows = next(name for name in parameters if name.startswith("lows"))
        from_the_start = _buffers(
            postgres.engine(), statement, parameters | {lows: [0 for _ in parameters[lows]]}
        )
    assert 5 * low_water < from_the_start


@contextmanager
def _old_transaction(engine: Engine) -> Iterator[None]:
    """A transaction that has been open since before, and whose snapshot can still see the deleted rows."""
    with engine.connect().execution_options(isolation_level="REPEATABLE READ") as connection:
        connection.execute(select(func.count()).select_from(TABLES.message))
        yield


def _forbid_analysis(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE outbox_message SET (autovacuum_enabled = off)")


def _add(engine: Engine, places: list[tuple[str, int]]) -> None:
    rows = [
        {"bucket": bucket, "id": f"{topic}-{bucket}", "topic": topic, "payload": b"", "content_type": "x"}
        for topic, bucket in places
    ]
    with engine.begin() as connection:
        connection.execute(insert(TABLES.message), rows)


def _add_many(connection: Connection) -> None:
    connection.execute(
        text(
            "INSERT INTO outbox_message (bucket, id, topic, payload, content_type) "
            "SELECT n % :buckets, n::text, 'orders', 'x', 'text/plain' FROM generate_series(1, :many) n"
        ),
        {"buckets": BUCKETS, "many": MANY},
    )


def _statistics(engine: Engine, deleted: int) -> Any:
    """The table's statistics, once the server has counted this many deleted rows."""
    question = text("SELECT * FROM pg_stat_user_tables WHERE relname = 'outbox_message'")

    def counted() -> Any:
        with engine.connect() as connection:
            return connection.execute(question).one()

    wait_until(lambda: counted().n_tup_del >= deleted)
    return counted()


def _buffers(engine: Engine, statement: str, parameters: Any) -> int:
    """How many pages a scan reads."""
    with engine.connect() as connection:
        connection.exec_driver_sql("SET enable_seqscan = off")
        connection.exec_driver_sql("SET enable_bitmapscan = off")
        explained = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}"
        plan = connection.exec_driver_sql(explained, parameters).scalar_one()[0]["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


@pytest.mark.usefixtures("always_tends")
@pytest.mark.parametrize("why", ["a key that waits", "a paused topic"])
def test_waiting_messages_are_not_read_again(postgres: Database, why: str) -> None:
    """Behind tens of thousands of messages that have to wait, messages of other keys are found without
    reading the waiting ones each time; when the wait ends, all are sent."""
    engine = postgres.engine()
    _forbid_analysis(engine)
    if why == "a paused topic":
        pause(engine, "slow")
    with engine.begin() as connection:
        connection.execute(
            text(
                "INSERT INTO outbox_message (bucket, id, topic, key, payload, content_type) "
                "SELECT 0, n::text, 'slow', 'slow', 'x', 'text/plain' FROM generate_series(1, :left) n"
            ),
            {"left": LEFT},
        )
    publisher = Ordered(lambda each: Unavailable("no", 3_600) if each.key == "slow" else ACCEPTED)
    scans: list[tuple[str, Any]] = []
    engine = postgres.engine()
    event.listen(
        engine,
        "before_cursor_execute",
        lambda _, __, statement, parameters, *___: scans.append((statement, parameters)),
    )
    with running(Relay(engine, publisher, poll=0.05)):
        for number in range(10):
            with postgres.engine().begin() as connection:
                Outbox().publish(connection, "quick", b"x", f"k{number}")
            wait_until(lambda: len(publisher.accepted) == number + 1)  # noqa: B023 - it is called at once
            time.sleep(0.1)
        found = [each for each in scans if "unnest" in each[0] and "LATERAL" in each[0]][-1]
        assert _buffers(postgres.engine(), *found) < LEFT / 100
        publisher.answer = lambda _: ACCEPTED
        resume(engine, "slow")
        retry_all(engine, "waiting")
        wait_until(lambda: len(publisher.accepted) == LEFT + 10, timeout=120)


@pytest.mark.usefixtures("always_tends")
def test_a_topic_that_is_resumed_while_its_key_waits(postgres: Database) -> None:
    """A paused message is sent after its topic is resumed, even if a later message of its key, to another
    topic, waits for its retry."""
    engine = postgres.engine()
    pause(engine, "orders")
    publisher = Recorder(lambda each: Unavailable("no", 3_600) if each.topic == "billing" else ACCEPTED)
    with running(Relay(engine, publisher, poll=0.05)):
        for topic in ("orders", "billing"):
            publish(engine, "k1", topic=topic)
        wait_until(lambda: len(publisher.sent) == 1)
        time.sleep(0.5)
        resume(engine, "orders")
        wait_until(lambda: publisher.of("k") == ["k1"], timeout=20)
        assert publisher.accepted[0].topic == "orders"
