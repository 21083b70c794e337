"""What a relay reports about its work: in the log and to hooks; and what it does when the database rejects
its login."""

import asyncio
import logging
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import URL, Engine, Row, create_engine, text
from sqlalchemy.ext.asyncio import create_async_engine

from inbox import Event, EventKind, LogEvents
from outbox import AsyncRelay, Outcome, Refused, Relay, Unavailable, Unknown, status
from outbox._relaying import journal
from outbox.errors import DatabaseRefused, InvalidOption
from tests.support.database import Database
from tests.support.on_servers import on
from tests.support.outbox_publishers import (
    TABLES,
    AsyncRecorder,
    Recorder,
    count,
    publish,
    relay,
    waiting,
)
from tests.support.processes import wait_until, workers
from tests.support.proxy import TcpProxy
from tests.support.relay.crashes import running

LOG = "outbox.relay"
WORD = "s3cr3t"


def brief(event: Event) -> tuple[str, str | None, int, str | None]:
    return event.kind.value, event.topic, event.count, event.error


OUTCOMES: dict[str, list[Outcome]] = {
    "b1": [Refused("no")],
    "c1": [Unavailable("full")],
    "d1": [Unknown("silence")],
}
EVENTS = [
    ("sent", "orders", 2, None),
    ("sent", "mail", 1, None),
    ("refused", "orders", 1, "no"),
    ("unavailable", "orders", 1, "full"),
    ("unknown", "orders", 1, "silence"),
    ("dead_letter", "orders", 1, "no"),
]


def is_committed(event: Event, rows: dict[str, Row[Any]]) -> bool:
    """Whether the waiting messages are those that there are after one of `EVENTS`."""
    match event.kind, event.topic:
        case EventKind.SENT, "orders":
            return rows.keys().isdisjoint(["a1", "-1"])
        case EventKind.SENT, _:
            return "m1" not in rows
        case EventKind.UNAVAILABLE, _:
            return bool(rows["c1"].attempts)
        case EventKind.UNKNOWN, _:
            return bool(rows["d1"].attempts)
        case _:
            return "b1" not in rows


@on("sqlite")
def test_events_of_a_batch(engine: Engine) -> None:
    """There is one event for each kind, topic and batch, with the number of messages and the reason; an event
    about a single message has its id, key and attempt too. What an event reports has been committed, and no
    event is repeated."""
    ids = publish(engine, "a1", "-1", "b1", "c1", "d1")
    publish(engine, "m1", topic="mail")
    told: list[Event] = []
    too_early: list[Event] = []

    def watch(event: Event) -> None:
        told.append(event)
        if not is_committed(event, waiting(engine)):
            too_early.append(event)

    relay(engine, Recorder(OUTCOMES), on_event=[watch, LogEvents()])
    assert sorted(map(brief, told)) == sorted(EVENTS)
    assert not too_early
    (refused,) = (event for event in told if event.kind is EventKind.REFUSED)
    assert (refused.message_id, refused.key, refused.attempt) == (ids[2], "b", 1)
    (several,) = (event for event in told if event.count == 2)
    assert (several.message_id, several.key) == (None, "")


@on("sqlite")
def test_a_hook_that_raises(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    """An error from a hook is logged and affects neither the message nor the other hooks. A hook that is not
    callable is rejected."""
    publish(engine, "a1")
    told: list[Event] = []

    def fail(_: Event) -> None:
        raise ZeroDivisionError

    assert relay(engine, Recorder(), on_event=[fail, told.append]) == 1
    assert [event.kind for event in told] == [EventKind.SENT]
    assert "on_event= failed on" in caplog.text
    assert count(engine, TABLES.message) == 0
    with pytest.raises(InvalidOption, match="on_event=3"):
        Relay(engine, Recorder(), on_event=3)  # type: ignore[arg-type]


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What relays have logged, without their names."""
    return [each.getMessage().partition("one ")[2] for each in caplog.records if each.name == LOG]


@on("sqlite", "postgresql")
def test_the_life_of_a_relay(
    migrated: Database, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relay logs one line when it starts, connects, owns other buckets, and stops, and a summary of each
    minute in which something happened."""
    engine = migrated.engine()
    monkeypatch.setattr(journal, "MINUTE", 0.1)
    publisher = Recorder({"c1": [Refused("no")]})
    one = Relay(engine, publisher, name="one", poll=0.1)
    other = Relay(migrated.engine(), Recorder(), poll=0.1)
    with caplog.at_level(logging.INFO, LOG), running(one):
        publish(engine, "a1", "b1")
        wait_until(lambda: any("in the last minute" in line for line in lines(caplog)))
        with running(other):
            wait_until(lambda: "owns 32 buckets, 64 before" in lines(caplog))
    said = lines(caplog)
    place = f"{migrated.url.get_backend_name()}://"
    assert said[0].startswith(f"starts: from {place}")
    assert said[0].endswith(" to Recorder")
    assert said[1].startswith(f"is connected to {place}")
    assert said[2] == "owns 64 buckets, 0 before"
    assert "in the last minute: 2 sent" in said
    assert said[-1] == "has stopped"


LOCKED_OUT: dict[str, dict[str, tuple[str, Any]]] = {
    "postgresql": {"role": ("28", {"username": "nobody"}), "database": ("3D000", {"database": "nowhere"})},
    "mysql": {
        "role": ("1045", {"username": "nobody", "password": WORD}),
        "database": ("1049", {"database": "nowhere"}),
    },
}


@on("postgresql", "mariadb")
@pytest.mark.parametrize("how", ["role", "database"])
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_a_login_that_is_refused(migrated: Database, how: str, *, is_async: bool) -> None:
    """If its first login is rejected, a relay ends with an error that names the address and the code, but no
    password."""
    code, change = LOCKED_OUT[migrated.url.get_backend_name()][how]
    begin = _run_async if is_async else _run
    url = migrated.async_url if is_async else migrated.url
    with pytest.raises(DatabaseRefused, match=code) as raised:
        begin(url.set(**change))
    assert f"{migrated.url.host}:{migrated.url.port}" in str(raised.value)
    assert WORD not in str(raised.value)


def _run(url: URL) -> None:
    Relay(create_engine(url), Recorder()).run()


def _run_async(url: URL) -> None:
    async def run() -> None:
        engine = create_async_engine(url)
        try:
            await AsyncRelay(engine, AsyncRecorder()).run()
        finally:
            await engine.dispose()

    asyncio.run(run())


@on("postgresql", "mariadb")
def test_nobody_answers_yet(migrated: Database, caplog: pytest.LogCaptureFixture) -> None:
    """A relay waits for a server that does not answer at all, even before its first connection; the log gives
    the address and the reason."""
    with TcpProxy(str(migrated.url.host), migrated.url.port or 0) as proxy:
        port = proxy.port
    with running(Relay(create_engine(migrated.url.set(host="127.0.0.1", port=port)), Recorder())):
        wait_until(lambda: "does not answer" in caplog.text)
    assert f"127.0.0.1:{port}" in caplog.text
    assert "refused" in caplog.text


@contextmanager
def own_role(engine: Engine, url: URL) -> Iterator[tuple[URL, Callable[[bool], None]]]:
    """The URL of a superuser role, and a function that allows or forbids its login and ends its
    connections."""
    name = f"relay_{uuid4().hex[:12]}"
    if url.get_backend_name() == "postgresql":
        make, drop = f"CREATE ROLE {name} SUPERUSER LOGIN", f"DROP ROLE {name}"
        locks = {True: f"ALTER ROLE {name} LOGIN", False: f"ALTER ROLE {name} NOLOGIN"}
        ends = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{name}'"
    else:
        make, drop = f"CREATE USER {name} IDENTIFIED BY '{WORD}'", f"DROP USER {name}"
        locks = {
            True: f"ALTER USER {name} IDENTIFIED BY '{WORD}'",
            False: f"ALTER USER {name} IDENTIFIED BY 'other'",
        }
        ends = f"KILL USER {name}"

    def let_in(is_let_in: bool) -> None:
        run(locks[is_let_in], *([] if is_let_in else [ends]))

    def run(*statements: str) -> None:
        with engine.begin() as connection:
            for statement in statements:
                connection.execute(text(statement))

    run(make)
    if url.get_backend_name() != "postgresql":
        run(f"GRANT ALL ON {url.database}.* TO {name}")
    try:
        yield url.set(username=name, password=WORD), let_in
    finally:
        run(ends, drop)


@on("postgresql", "mariadb")
def test_a_login_that_is_refused_later(migrated: Database, caplog: pytest.LogCaptureFixture) -> None:
    """A relay that has been logged in before keeps trying when its login is rejected, and continues when it
    is allowed again: a password change may be under way."""
    engine = migrated.engine()
    publisher = Recorder()
    with own_role(engine, migrated.url) as (url, let_in):
        relays = create_engine(url)
        with running(Relay(relays, publisher, poll=0.1)):
            publish(engine, "a1")
            wait_until(lambda: publisher.of("a") == ["a1"])
            let_in(False)
            publish(engine, "a2")
            wait_until(lambda: "does not answer" in caplog.text)
            let_in(True)
            wait_until(lambda: publisher.of("a") == ["a1", "a2"])
        relays.dispose()
    assert WORD not in caplog.text


def test_a_file_that_cannot_be_opened() -> None:
    """A relay does not wait for a path that is wrong."""
    with pytest.raises(DatabaseRefused, match="unable to open database file"):
        Relay(create_engine("sqlite:////nowhere/shop.db"), Recorder()).run()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_run_in_the_main_thread_handles_signals(postgres: Database, number: signal.Signals) -> None:
    """`Relay.run()`, called as in the README, handles the signal: the relay frees its buckets, and the
    process exits with status 0."""
    with workers((_run_relay, postgres.url)) as (child,):
        wait_until(lambda: len(status(postgres.engine()).relays) == 1)
        child._signal(number)
        assert child.hear() == "ended"
        assert child.exit_code() == 0
    assert status(postgres.engine()).relays == ()


def _run_relay(pipe: Any, url: URL) -> None:
    Relay(create_engine(url), Recorder(), lease=300).run()
    pipe.send("ended")


@on("sqlite")
def test_run_in_another_thread_handles_none(engine: Engine) -> None:
    """Signal handlers can only be set in the main thread: in other threads `run` leaves them unchanged."""
    before = signal.getsignal(signal.SIGTERM)
    with running(Relay(engine, Recorder())):
        publish(engine, "a1")
        wait_until(lambda: count(engine, TABLES.message) == 0)
        assert signal.getsignal(signal.SIGTERM) is before
