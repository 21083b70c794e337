"""What a relay rejects, and how it handles publishers that break their contract."""

import asyncio
import inspect
import itertools
import logging
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, delete
from sqlalchemy.ext.asyncio import create_async_engine

from inbox import Backoff, Event, EventKind
from inbox_outbox_base.monitoring.events import Hook
from outbox import AsyncRelay, Envelope, Outcome, Refused, Relay, Router, Unavailable, Unknown
from outbox._publishers.outcomes import as_outcome
from outbox.errors import InvalidOption, TablesMissing, UnsafeBroker, WrongBucketCount
from outbox.schema import BUCKETS
from tests.support.cases import case
from tests.support.database import Database
from tests.support.on_servers import on
from tests.support.outbox_publishers import (
    ACCEPTED,
    TABLES,
    AsyncRecorder,
    Recorder,
    Timed,
    accept,
    count,
    dead,
    let_backoffs_end,
    names_of,
    publish,
    relay,
    waiting,
)

ANYWHERE = create_engine("sqlite://")


class Rude:
    """A publisher whose `send` is the given function."""

    def __init__(self, send: Callable[[Sequence[Envelope]], Any]) -> None:
        self._send = send
        self.batches: list[list[str]] = []

    def send(self, batch: Sequence[Envelope]) -> Any:
        self.batches.append(names_of(batch))
        return self._send(batch)


def raising(_: Sequence[Envelope]) -> Iterable[Outcome]:
    raise ConnectionError("gone")


def dying_halfway(batch: Sequence[Envelope]) -> Iterable[Outcome]:
    """A generator that raises after two answers."""
    yield ACCEPTED
    yield ACCEPTED
    raise ConnectionError("gone")


def dying_at_last(batch: Sequence[Envelope]) -> Iterable[Outcome]:
    yield from [ACCEPTED] * len(batch)
    raise ConnectionError("gone")


SAYS_NOTHING = {
    "raises": (raising, "ConnectionError: gone"),
    "is a generator that raises": (lambda batch: itertools.chain(raising(batch)), "ConnectionError: gone"),
    "forgets to answer": (lambda _: None, "TypeError: 'NoneType' object is not iterable"),
    "answers nothing": (lambda _: [], "the publisher gave no answer"),
    "answers True": (lambda batch: [True] * len(batch), "the publisher gave True, which is not an Outcome"),
    "answers a class": (lambda batch: [type(ACCEPTED)] * len(batch), "which is not an Outcome"),
    "answers too much": (
        lambda batch: [ACCEPTED] * (len(batch) + 1),
        "more answers than messages",
    ),
    "never stops": (lambda _: itertools.repeat(ACCEPTED), "more answers than messages"),
    "names a place that is not in the batch": (
        lambda batch: ((place, ACCEPTED) for place in range(len(batch), 0, -1)),
        "an outcome for place 2, which expects none",
    ),
}


@pytest.mark.parametrize("how", SAYS_NOTHING)
@on("sqlite")
def test_unusable_answers(engine: Engine, how: str, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever a publisher does instead of answering, its messages are unknown and record the reason; the
    relay goes on and sends them again with the same ids."""
    caplog.set_level(logging.CRITICAL)
    send, why = SAYS_NOTHING[how]
    published = publish(engine, "a1", "b1", "a2")
    publisher = Rude(send)
    assert relay(engine, publisher) == 0
    assert publisher.batches == [["a1", "b1"]]
    rows = waiting(engine)
    assert [row.state for row in rows.values()] == ["unknown", "unknown", "pending"]
    assert why in rows["a1"].error
    let_backoffs_end(engine)
    better = Recorder()
    assert relay(engine, better) == 3
    assert {each.id for each in better.sent} == set(published)


@on("sqlite")
def test_a_publisher_that_fails_halfway(engine: Engine) -> None:
    """Answers given before the publisher raised are valid; the other messages are unknown."""
    publish(engine, "a1", "b1", "c1", "d1")
    assert relay(engine, Rude(dying_halfway)) == 2
    assert {name: row.state for name, row in waiting(engine).items()} == {"c1": "unknown", "d1": "unknown"}


@on("sqlite")
def test_too_few_answers(engine: Engine) -> None:
    """If there are too few answers, the messages at the end of the batch are unknown."""
    publish(engine, "a1", "b1", "c1")
    assert relay(engine, Rude(lambda batch: [ACCEPTED] * (len(batch) - 1))) == 2
    assert list(waiting(engine)) == ["c1"]


@on("sqlite")
def test_a_place_that_is_named_twice(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    """If a publisher gives two outcomes for one place in the batch, the outcomes before the second one are
    valid; the other messages are unknown, and the reason is logged once."""
    publish(engine, "a1", "b1", "c1", "d1")
    answers = [(2, ACCEPTED), (1, ACCEPTED), (2, ACCEPTED), (0, ACCEPTED), (3, ACCEPTED)]
    assert relay(engine, Rude(lambda _: answers)) == 2
    assert {name: row.state for name, row in waiting(engine).items()} == {"a1": "unknown", "d1": "unknown"}
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert errors == ["the publisher gave an outcome for place 2, which expects none"]


@on("sqlite")
def test_a_publisher_that_fails_after_its_last_answer(engine: Engine) -> None:
    """If the publisher raises after its last answer, all answers are valid."""
    publish(engine, "a1", "b1")
    assert relay(engine, Rude(dying_at_last)) == 2
    assert not waiting(engine)


@on("sqlite")
def test_answers_one_by_one(engine: Engine) -> None:
    """`send` can be a generator."""
    publish(engine, "a1", "a2", "b1", "c1")
    publisher = Rude(lambda batch: (Refused("no") if each.key == "b" else ACCEPTED for each in batch))
    assert relay(engine, publisher) == 3
    assert list(dead(engine)) == ["b1"]


class Unspeakable:
    """An object that has neither text nor a hash."""

    def __str__(self) -> str:
        raise ZeroDivisionError

    __repr__ = __hash__ = __str__  # type: ignore[assignment]


class Unreadable(Refused):
    """An outcome whose reason cannot be read, like that of an object that has been detached."""

    def __getattribute__(self, name: str) -> Any:
        if name == "reason":
            raise LookupError(name)
        return super().__getattribute__(name)

    def __repr__(self) -> str:
        return "Unreadable()"


REASONS: list[Any] = ["", "a\0b", "\ud800", "x" * 100_000, "ä" * 10_000, ValueError("a"), None, Unspeakable()]
NO_TIMES: list[Any] = [-1, float("nan"), float("inf"), 1e300, 10**400, "soon", timedelta(seconds=1), True]
AS_TEXT: list[tuple[Any, str]] = [
    ("away", "away"),
    (ConnectionError("amqp://user:s3cr3t@host is away"), "ConnectionError: amqp://user:***@host is away"),
    (503, "503"),
    (b"amqp://user:s3cr3t@host: \xff", "amqp://user:***@host: \\xff"),
    (Unspeakable(), "<Unspeakable>"),
    (ZeroDivisionError(Unspeakable()), "ZeroDivisionError"),
]
"""Reasons, and what is left of them."""
NO_OUTCOMES: list[tuple[Any, str]] = [
    (Unreadable(""), "the publisher gave Unreadable(), which is not an Outcome"),
    (Unspeakable(), "the publisher gave <Unspeakable>, which is not an Outcome"),
    (["amqp://user:s3cr3t@host"], "the publisher gave ['amqp://user:***@host'], which is not an Outcome"),
    (
        {"the answer": "x" * 50 + "amqp://user:s3cr3t@host"},
        f"the publisher gave {{'the answer': '{'x' * 50}amqp://user:**, which is not an Outcome",
    ),
]


def test_any_reason_can_be_stored(engine: Engine) -> None:
    """A reason of any content, in any outcome, stops neither the message nor the relay."""
    for reason in REASONS:
        publish(engine, "a1", "b1", "c1", "d1")
        outcomes = {"a1": [Refused(reason)], "b1": [Unavailable(reason)], "c1": [Unknown(reason)]}
        with case(type(reason).__name__):
            assert relay(engine, Recorder(outcomes)) == 1
            assert list(dead(engine)) == ["a1"]
            assert len(dead(engine)["a1"].error) <= 4_000
            assert list(waiting(engine)) == ["b1", "c1"]
        with engine.begin() as connection:
            for table in (TABLES.message, TABLES.dead):
                connection.execute(delete(table))


TWICE = "publisher 1 (Answering): unknown: {0}; publisher 2 (Answering): unknown: {0}"
"""The reason of two publishers together."""


class Answering(Recorder):
    """Gives one answer to the messages of a topic, and accepts all others."""

    def __init__(self, given: Any, topic: str) -> None:
        super().__init__(lambda message: given if message.topic == topic else ACCEPTED)


class AsyncAnswering(Answering):
    """The same for an AsyncRelay."""

    async def send(self, batch: Sequence[Envelope]) -> Iterable[Outcome]:  # type: ignore[override]
        return super().send(batch)


def in_thread(engine: Engine, given: Any, hook: Hook) -> int:
    return relay(engine, Answering(given, "bad"), on_event=hook)


def fanned_out(engine: Engine, given: Any, hook: Hook) -> int:
    both = [Answering(given, "bad"), Answering(given, "bad")]
    return relay(engine, Router({"*": both}), on_event=hook)


def in_task(engine: Engine, given: Any, hook: Hook) -> int:
    async def scenario() -> int:
        own = create_async_engine(f"sqlite+aiosqlite:///{engine.url.database}")
        try:
            return await AsyncRelay(own, AsyncAnswering(given, "bad"), on_event=hook).run_once()
        finally:
            await own.dispose()

    return asyncio.run(scenario())


@pytest.mark.parametrize(
    ("send", "around"), [(in_thread, "{0}"), (in_task, "{0}"), (fanned_out, TWICE)], ids=["", "async", "both"]
)
@on("sqlite")
def test_answers_become_text(
    engine: Engine, send: Any, around: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever a publisher gives as a reason or instead of an outcome, the row, the log and the events have
    it as text without passwords, and other topics go on."""
    for answer, text in [*((Unknown(reason), text) for reason, text in AS_TEXT), *NO_OUTCOMES]:
        publish(engine, "a1", "b1", topic="bad")
        publish(engine, "c1", topic="good")
        told = list[Event]()
        with case(text):
            assert send(engine, answer, told.append) == 1
            assert {row.error for row in waiting(engine).values()} == {around.format(text)}
            errors = {event.error for event in told if event.kind is EventKind.UNKNOWN}
            assert errors == {around.format(text)}
            assert "s3cr3t" not in caplog.text
        with engine.begin() as connection:
            connection.execute(delete(TABLES.message))


@on("sqlite")
def test_a_broker_that_is_away_in_other_words(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    """A publisher that gives an exception as the reason why its broker takes nothing, or why it refuses a
    message, stops no relay: the log has the reason as text."""
    for reason, text in AS_TEXT:
        publish(engine, "a1", topic="bad")
        publish(engine, "b1", topic="good")
        assert relay(engine, Answering(Unavailable(reason), "bad"), on_event=lambda _: None) == 1
        assert f"topic 'bad' is not taken by the broker, retrying: {text}" in caplog.messages
        let_backoffs_end(engine)
        assert relay(engine, Answering(Refused(reason), "bad"), on_event=lambda _: None) == 0
        assert caplog.messages[-1].endswith(f"is dead after 2 attempts: {text}")
        with engine.begin() as connection:
            connection.execute(delete(TABLES.dead))


@on("sqlite")
def test_places_that_are_none(engine: Engine) -> None:
    """Of two publishers for one topic, the first names places that cannot be looked up: the second gets the
    messages all the same."""
    places: list[Any] = [[], Unspeakable(), "0", None]
    for place in places:
        publish(engine, "a1")
        second = Recorder()
        assert relay(engine, Router({"*": [Answering((place, ACCEPTED), "orders"), second]})) == 0
        assert second.names == ["a1"]
        with engine.begin() as connection:
            connection.execute(delete(TABLES.message))


@on("sqlite")
def test_a_place_with_a_password(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    """A publisher that names an address instead of a place does not bring its password into the log."""
    publish(engine, "a1")
    assert relay(engine, Answering(("amqp://user:s3cr3t@host", ACCEPTED), "orders")) == 0
    why = "the publisher gave an outcome for place 'amqp://user:***@host', which expects none"
    assert waiting(engine)["a1"].error == why
    assert caplog.messages[0] == why


@pytest.mark.parametrize("name", ["ordered", "concurrent"])
def test_declarations_that_are_no_answer(name: str) -> None:
    """A method, or another value that merely counts as true or false, is not taken for a declaration: the
    order of keys would depend on it."""
    for wrong in (lambda: False, None, 1, "no"):
        publisher = Recorder()
        setattr(publisher, name, wrong)
        for each in (publisher, Router({"*": publisher})):
            with pytest.raises(InvalidOption, match=rf"publisher\.{name}=.*: expected True or False"):
                Relay(ANYWHERE, each)


def test_any_retry_after_can_be_stored(engine: Engine) -> None:
    """An invalid `retry_after` stops neither the message nor the relay."""
    for retry_after in NO_TIMES:
        publish(engine, "a1", "b1")
        publisher = Recorder({"a1": [Unavailable("a", retry_after)] * 2})
        relay(engine, publisher)
        let_backoffs_end(engine)
        while "a1" in waiting(engine):
            relay(engine, publisher)
            let_backoffs_end(engine)
        assert [each.attempt for each in publisher.sent if each.key == "a"] == [1, 2, 3], retry_after


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"batch": 0}, "batch=0"),
        ({"batch": 1.5}, "batch=1.5"),
        ({"lease": 0.5}, "lease=0.5"),
        ({"lease": "30"}, "lease='30'"),
        ({"lease": timedelta(days=2)}, "lease="),
        ({"listen_url": 5}, "listen_url=int: expected the URL"),
        ({"listen_url": "here"}, "listen_url: expected something like postgresql://"),
        ({"listen_url": "mysql://u:secret@h/d"}, "listen_url: mysql+pymysql: expected postgresql+psycopg"),
        ({"listen_url": "postgresql+asyncpg://u:secret@h/d"}, "listen_url: postgresql+asyncpg: expected"),
        ({"poll": -1}, "poll=-1"),
        ({"max_attempts": 0}, "max_attempts=0"),
        ({"backoff": 3}, "backoff=3"),
        ({"after_dead": "stop"}, "after_dead='stop'"),
        ({"keep_sent": -1}, "keep_sent=-1"),
        ({"keep_sent": 0}, "keep_sent=0: expected more than 0"),
        ({"give_up_after": 0}, "give_up_after=0"),
        ({"give_up_after": "1h"}, "give_up_after='1h'"),
        ({"buckets": 0}, "buckets=0"),
        ({"name": "x" * 256}, "name='x"),
        ({"name": 7}, "name=7"),
    ],
    ids=str,
)
def test_invalid_options(options: dict[str, Any], named: str) -> None:
    """An invalid option raises an error that names it and its value."""
    with pytest.raises(InvalidOption) as caught:
        Relay(ANYWHERE, Recorder(), **options)
    assert str(caught.value).startswith(named)


def test_options_at_their_limits() -> None:
    """The smallest and largest values of the options are accepted."""
    Relay(ANYWHERE, Recorder(), batch=1, lease=1, poll=0, max_attempts=1, keep_sent=1, name="x" * 255)
    Relay(ANYWHERE, Recorder(), lease=timedelta(days=1), backoff=Backoff(0), after_dead="hold")


def test_who_can_be_a_publisher() -> None:
    """A publisher has a `send` method, which is synchronous for a `Relay` and asynchronous for an
    `AsyncRelay`."""
    tasks = create_async_engine("sqlite+aiosqlite://")
    for nobody in (None, object(), accept):
        with pytest.raises(InvalidOption, match="publisher="):
            Relay(ANYWHERE, nobody)  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="publisher=AsyncRecorder: Relay needs a synchronous one"):
        Relay(ANYWHERE, AsyncRecorder())  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="publisher=Recorder: AsyncRelay needs an asynchronous one"):
        AsyncRelay(tasks, Recorder())  # type: ignore[arg-type]


def test_what_can_be_an_engine() -> None:
    """A `Relay` takes an Engine, and an `AsyncRelay` takes an AsyncEngine."""
    tasks = create_async_engine("sqlite+aiosqlite://")
    for wrong in (None, "sqlite://", tasks, tasks.sync_engine):
        with pytest.raises(InvalidOption, match="engine="):
            Relay(wrong, Recorder())  # type: ignore[arg-type]
    for wrong in (None, "sqlite://", ANYWHERE):
        with pytest.raises(InvalidOption, match="engine="):
            AsyncRelay(wrong, AsyncRecorder())  # type: ignore[arg-type]


def test_listening_where_there_is_nothing_to_hear() -> None:
    """Only PostgreSQL has notifications: with any other database `listen_url` is rejected."""
    with pytest.raises(InvalidOption, match="listen_url: postgresql, but the engine uses sqlite"):
        Relay(create_engine("sqlite://"), Recorder(), listen_url="postgresql://h/d")


@pytest.mark.parametrize("lease", [4, 5])
def test_a_send_that_could_outlast_the_lease(lease: float) -> None:
    """A publisher whose own time limit is not shorter than the lease is rejected, and the error names that
    limit."""
    with pytest.raises(UnsafeBroker, match=r"publisher\.timeout=5"):
        Relay(ANYWHERE, Timed(), lease=lease)
    Relay(ANYWHERE, Timed(), lease=6.5)


@on("sqlite")
def test_a_publisher_that_is_not_safe(engine: Engine) -> None:
    """An error from `check` reaches the caller each time, and nothing is sent."""

    class Unsafe(Recorder):
        def check(self, lease: float) -> None:
            raise UnsafeBroker(f"acks=1: a message could be lost within {lease:g} s")

    publish(engine, "a1")
    publisher = Unsafe()
    unsafe = Relay(engine, publisher)
    for _ in range(2):
        with pytest.raises(UnsafeBroker, match="acks=1"):
            unsafe.run_once()
    with pytest.raises(UnsafeBroker, match="acks=1"):
        unsafe.run()
    assert not publisher.sent
    assert count(engine, TABLES.relay) == 0


@on("sqlite")
def test_another_number_of_buckets(engine: Engine) -> None:
    """With another number of buckets, keys would be in other buckets: the relay does not start, and is not
    recorded as a member."""
    assert relay(engine, Recorder(), buckets=BUCKETS) == 0
    wrong = Relay(engine, Recorder(), buckets=BUCKETS + 1)
    with pytest.raises(WrongBucketCount, match=f"buckets={BUCKETS + 1}: the database has {BUCKETS}"):
        wrong.run_once()
    with pytest.raises(WrongBucketCount):
        wrong.run()
    assert count(engine, TABLES.relay) == 0


def test_a_database_without_the_tables(database: Database) -> None:
    """The error says that the tables are missing, and is raised each time without long retries."""
    without = Relay(database.engine(), Recorder())
    for begin in (without.run, without.run, without.run_once):
        with pytest.raises(TablesMissing):
            begin()

    async def scenario() -> None:
        engine = create_async_engine(database.async_url)
        try:
            with pytest.raises(TablesMissing):
                await AsyncRelay(engine, AsyncRecorder()).run_once()
        finally:
            await engine.dispose()

    asyncio.run(scenario())


@pytest.mark.parametrize("kind", [Relay, AsyncRelay])
def test_an_option_that_does_not_exist(kind: Any) -> None:
    """A misspelled option raises a TypeError that names it. Every option is in the signature, so that type
    checkers and editors know it."""
    known = inspect.signature(kind).parameters
    assert {"name", "batch", "give_up_after", "keep_sent"} <= set(known)
    assert not [each for each in known.values() if each.kind is each.VAR_KEYWORD]
    with pytest.raises(TypeError, match="bacth"):
        kind(ANYWHERE, Recorder(), bacth=10)


@pytest.mark.parametrize("offset", range(3_900, 8_100, 420))
def test_a_long_reason_hides_its_password(offset: int) -> None:
    """Wherever the text is cut, no part of a password stays."""
    word = "secret" * 900
    reason = f"{'x ' * (offset // 2)}amqp://app:{word}@broker/ refused"
    outcome = as_outcome(Unavailable(reason))
    assert isinstance(outcome, Unavailable)
    assert "secret" not in outcome.reason
