"""What relays and listeners count by the minute, in the database."""

import asyncio
import logging
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, insert, select, text

import inbox
import outbox
from inbox import AsyncInbox, Inbox, Series, SeriesEvents, SeriesKind, SqlStore, StatusInbox
from inbox._listening import handler_counts
from inbox.errors import InvalidOption, TablesMissing
from inbox.schema import tables
from inbox_outbox._operating.looking import look
from inbox_outbox._operating.over_time import lines_of, sparkline
from inbox_outbox_base.counting.series import SeriesWriter
from inbox_outbox_base.databases.taking_statements import clock
from outbox import DirectDelivery, Outcome, Refused, Unavailable, Unknown
from outbox._relaying import relay_series
from tests.support.database import Database
from tests.support.on_servers import WITH_WRITERS, on
from tests.support.outbox_publishers import Recorder, count, publish, relay
from tests.support.program import complaints, run

MINUTE = tables().minute
BILLING = Inbox("billing")


def totals(found: Series) -> dict[str, int]:
    """The numbers of all points together."""
    counted: Counter[str] = Counter()
    for point in found.points:
        counted.update({str(kind): number for kind, number in point.numbers.items()})
    return {kind: number for kind, number in counted.items() if number}


def now_of(engine: Engine) -> datetime:
    with engine.connect() as connection:
        now: datetime = connection.execute(clock()).scalar_one()
    return now


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """A transaction that has written something before, as a relay's has."""
    with engine.begin() as connection:
        connection.execute(text("UPDATE outbox_bucket SET freed_at = freed_at WHERE bucket < 0"))
        yield connection


def put(engine: Engine, rows: Iterable[tuple[datetime, str, str, str, int]]) -> None:
    names = ("minute", "source", "kind", "name", "number")
    with engine.begin() as connection:
        connection.execute(insert(MINUTE), [dict(zip(names, row, strict=True)) for row in rows])


def test_what_relays_count(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a relay has sent, in how many sends it failed, what died, and samples of what waits: of all topics
    or of one. An interval in which nobody has written has no point."""
    monkeypatch.setattr(relay_series, "_FIRST", 0.0)
    assert outbox.series(engine).points == ()
    answers: dict[str, list[Outcome]] = {
        "b1": [Refused("never")],
        "c1": [Unknown("silence")],
        "d1": [Unavailable("full", 3_600.0)],
    }
    publish(engine, "a1", "a2", "b1", "c1", "d1")
    publish(engine, "e1", topic="mail")
    relay(engine, Recorder(answers))
    found = outbox.series(engine)
    counted = totals(found)
    assert counted.pop("pending") == 6
    assert counted.pop("oldest", 0) < 60
    assert counted == {"sent": 3, "refused": 1, "unknown": 1, "unavailable": 1, "died": 1}
    assert totals(outbox.series(engine, topic="mail")) == {"sent": 1}
    assert totals(inbox.series(engine)) == {}
    assert {point.at.second for point in found.points} == {0}
    assert timedelta() <= found.now - found.points[-1].at < timedelta(minutes=2)
    assert found.points[-1].numbers.keys() >= {SeriesKind.SENT, SeriesKind.DIED}
    publish(engine, "f1")
    relay(engine, Recorder(), name="b")
    assert totals(outbox.series(engine, "24h"))["sent"] in (4, 5)  # and c1, if its wait is over


def test_minutes_become_ten_minutes(engine: Engine) -> None:
    """Minutes older than two hours become rows for ten minutes, once, although two processes try at the same
    time: sums stay, and of samples the highest. What is older than a week goes."""
    now = now_of(engine).replace(second=0, microsecond=0)
    hours = [now - timedelta(hours=3, minutes=minute) for minute in range(25)]
    rows = [(at, source, "sent", name, 1) for at in hours for source in "ab" for name in ("mail", "orders")]
    rows += [(at, "a", "pending", "", number) for number, at in enumerate(hours)]
    rows += [(now - timedelta(days=8), "", "sent", "mail", 9), (now, "a", "sent", "mail", 5)]
    put(engine, rows)
    day, mail = (totals(outbox.series(engine, "24h", topic=topic)) for topic in (None, "mail"))
    assert (day["sent"], mail["sent"]) == (105, 55)
    highest = {
        point.at: point.numbers.get(SeriesKind.PENDING) for point in outbox.series(engine, "24h").points
    }

    def fold(_: int) -> None:
        writer = SeriesWriter(MINUTE, "c")
        for _ in range(8):
            with writing(engine) as connection:
                writer.fold(connection)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(fold, range(2)))
    with engine.connect() as connection:
        left = connection.execute(select(MINUTE).where(MINUTE.c.minute < now - timedelta(hours=2))).all()
    assert {row.source for row in left} == {""}
    assert len(left) <= 1 + 3 * 4
    assert sorted(row.minute for row in left)[1] > now - timedelta(hours=4)
    assert totals(outbox.series(engine, "24h")) == day
    assert totals(outbox.series(engine, "24h", topic="mail")) == mail
    found = outbox.series(engine, "24h").points
    assert {point.at: point.numbers.get(SeriesKind.PENDING) for point in found} == highest
    assert totals(outbox.series(engine, "7d"))["sent"] == 105
    assert totals(outbox.series(engine))["sent"] == 5


@on("sqlite")
def test_many_topics_and_a_repeated_write(engine: Engine) -> None:
    """A source counts fifty topics apart, the others together; a transaction that is repeated, because nobody
    knows whether it has committed, adds nothing."""
    writer = SeriesWriter(MINUTE, "a")
    for _ in range(2):
        for number in range(60):
            writer.add(SeriesKind.SENT, f"topic-{number}")
        for _ in range(2):
            with writing(engine) as connection:
                written = writer.write(connection)
        assert written is not None
        writer.committed(written)
    assert writer.is_empty
    assert totals(outbox.series(engine))["sent"] == 120
    with engine.connect() as connection:
        assert len(set(connection.execute(select(MINUTE.c.name)).scalars())) == 51
    assert totals(outbox.series(engine, topic="topic-7"))["sent"] == 2


@on(*WITH_WRITERS)
def test_what_listeners_count(engine: Engine) -> None:
    """A listener counts the answers of its handler's inbox, in both modes, and a process stores them by
    itself: nobody has to ask for it. What another consumer has taken is apart."""

    @BILLING.handler(engine, key=lambda message: message[0], payload=str)
    def bill(connection: Connection, message: str) -> None: ...

    orders = StatusInbox("orders", store=SqlStore(engine), max_attempts=2)

    @orders.handler(key=str)
    def order(claim: Any, message: str) -> None:
        if message == "bad":
            raise ValueError(message)

    listener = BILLING.listener()
    listener.decide(["a", "b", "a", "a, but another one"], bill)
    orders.listener().decide(["x", "bad", "x"], order)
    handler_counts.flush(bill)
    assert totals(inbox.series(engine, consumer="billing")) == {"accepted": 2, "duplicate": 1, "mismatch": 1}
    assert totals(inbox.series(engine, consumer="orders")) == {"accepted": 1, "duplicate": 1, "failed": 1}
    assert totals(inbox.series(engine)) == {"accepted": 3, "duplicate": 2, "mismatch": 1, "failed": 1}
    assert totals(outbox.series(engine)) == {}
    listener.decide(["c"], bill)
    handler_counts.flush(bill)
    assert totals(inbox.series(engine, "24h"))["accepted"] == 4


@on("postgresql")
def test_what_an_asynchronous_listener_counts(migrated: Database) -> None:
    """The same in a task of the engine's loop; what is left is stored when the loop ends."""
    sync = migrated.engine()

    async def consume() -> None:
        engine = migrated.async_engine()
        billing = AsyncInbox("billing")

        @billing.handler(engine, key=str)
        async def bill(connection: Any, message: str) -> None: ...

        listener = billing.listener()
        await listener.decide(["a", "b", "a"], bill)
        await handler_counts.flush_async(bill)
        assert totals(inbox.series(sync)) == {"accepted": 2, "duplicate": 1}
        await listener.decide(["c"], bill)
        await engine.dispose()

    asyncio.run(consume())
    assert totals(inbox.series(sync)) == {"accepted": 3, "duplicate": 1}


@on("sqlite")
def test_the_last_hour_on_the_terminal(engine: Engine) -> None:
    """`top` draws a bar for each minute of what there was, and a blank where nobody has written."""
    assert sparkline([0, None, 2, 4]) == "▁ ▄█"
    now = now_of(engine).replace(second=0, microsecond=0)
    ago = [now - timedelta(minutes=minutes) for minutes in (2, 3, 5)]
    put(
        engine, ((at, "a", "sent", "mail", number) for at, number in zip(ago, (4_000, 0, 2_000), strict=True))
    )
    (line,) = lines_of(engine, None, look(engine, None))
    assert line.removeprefix("sent").strip(" ▁▄█") == "at most 4,000"
    assert "▄ ▁█" in line
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE ops_minute")
    assert lines_of(engine, None, look(engine, None)) == []


PROGRAM = """
import sys
from inbox import Inbox
from sqlalchemy import create_engine

engine = create_engine(sys.argv[1])
handler = Inbox("billing").handler(engine, key=str)(lambda *_: None)
print(Inbox("billing").listener().decide(["a", "b"], handler).acknowledged)
if sys.argv[2] == "dispose":
    engine.dispose()
"""


@on("postgresql")
@pytest.mark.parametrize("end", ["dispose", "exit"])
def test_the_end_of_a_process(engine: Engine, end: str) -> None:
    """What a process has counted in its last second is stored when it ends, or disposes of the engine."""
    url = engine.url.render_as_string(hide_password=False)
    done = run([sys.executable, "-W", "error", "-c", PROGRAM, url, end])
    assert (done.stdout, complaints(done.stderr)) == ("2\n", "")
    assert totals(inbox.series(engine)) == {"accepted": 2}


@on("postgresql")
def test_without_a_listener(engine: Engine) -> None:
    """An inbox with `SeriesEvents` counts by its events, and a listener does not count them again. A relay
    that delivers directly counts on both sides."""
    events = SeriesEvents(engine)
    plain = Inbox("plain", on_event=events)

    @plain.handler(engine, key=str)
    def handle(connection: Connection, message: str) -> None: ...

    handle("a")
    handle("a")
    plain.listener().decide(["b"], handle)
    events._counts.flush()  # type: ignore[union-attr]
    assert totals(inbox.series(engine)) == {"accepted": 2, "duplicate": 1}

    @BILLING.handler(engine, key=inbox.message_id)
    def bill(connection: Connection, message: Any) -> None: ...

    publish(engine, "a1", "a2")
    relay(engine, DirectDelivery({"orders": bill}))
    handler_counts.flush(bill)
    assert totals(inbox.series(engine, consumer="billing")) == {"accepted": 2}
    assert totals(outbox.series(engine))["sent"] == 2


@on("postgresql", "mariadb", "sqlite")
def test_without_the_table(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    """Relays and listeners go on, and say so once."""
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE ops_minute")

    @BILLING.handler(engine, key=str)
    def bill(connection: Connection, message: str) -> None: ...

    publish(engine, "a1", "a2")
    with caplog.at_level(logging.WARNING, "inbox.series"):
        assert relay(engine, Recorder()) == 2
        writer = SeriesWriter(MINUTE, "a")
        for _ in range(2):
            with writing(engine) as connection:
                assert writer.write(connection, Counter({("sent", "mail"): 1})) is None
    assert [record.message.partition(":")[0] for record in caplog.records] == [
        "what is counted by the minute is not stored until this process restarts"
    ] * 2
    caplog.clear()
    with caplog.at_level(logging.WARNING, "inbox.series"):
        for key in ("a", "b"):
            assert BILLING.listener().decide([key], bill).acknowledged == 1
            handler_counts.flush(bill)
    assert len(caplog.records) == (engine.dialect.name != "sqlite")
    for series in (inbox.series, outbox.series):
        with pytest.raises(TablesMissing, match=r"table ops_minute is not .*inbox-outbox migrate"):
            series(engine)


@on("sqlite")
def test_invalid_options(engine: Engine) -> None:
    """Each names the option and the value."""
    for series in (inbox.series, outbox.series):
        with pytest.raises(InvalidOption, match="span='2h': expected one of 1h, 24h, 7d"):
            series(engine, "2h")  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="topic="):
        outbox.series(engine, topic="")
    with pytest.raises(InvalidOption, match="consumer="):
        inbox.series(engine, consumer="")
    with pytest.raises(InvalidOption, match="engine=str: expected an Engine or an AsyncEngine"):
        SeriesEvents("sqlite://")  # type: ignore[arg-type]
    assert count(engine, MINUTE) == 0
    assert datetime.now(UTC) - inbox.series(engine).now < timedelta(minutes=5)
