"""Relays and servers crash and answers are lost: what happens to the messages."""

import signal
from collections import Counter
from collections.abc import Iterator

import pytest
from sqlalchemy import Connection, Engine, create_engine, event

from examples.embedded_postgres import EmbeddedPostgres
from inbox.schema import metadata
from outbox import Relay
from tests.support.database import Database
from tests.support.on_servers import spread
from tests.support.outbox_publishers import TABLES, Recorder, count, let_leases_end, publish
from tests.support.processes import wait_until, workers
from tests.support.relay.crashes import (
    METADATA,
    Post,
    arrivals,
    assert_exact,
    engine_of,
    is_shared,
    newest,
    produce,
    running,
    take,
)
from tests.support.relay.servers import NAMES
from tests.support.relay.worker import POINTS, dying_relay, producer, relay

pytestmark = pytest.mark.mysql

KEYS = ["a", "b"]
NUMBERS = [1, 2, 3]
ALL = len(KEYS) * len(NUMBERS)


def relay_all(engine: Engine) -> None:
    """Relay until no message is left; the server may take a moment to notice that a process is gone."""
    post = Post(engine, "successor")

    def is_done() -> bool:
        Relay(engine, post).run_once()
        return count(engine, TABLES.message) == 0

    wait_until(is_done)


@spread("point", POINTS, where=NAMES)
def test_a_killed_relay_loses_no_message(migrated: Database, point: str) -> None:
    """A relay is killed with kill -9 before, during or after a send. Another one sends, with the same id,
    what may not have been sent. The killed relay's attempts are counted, and each message takes effect once,
    in its order."""
    engine = engine_of(migrated)
    METADATA.create_all(engine)
    with engine.begin() as connection:
        ids = produce(connection, NUMBERS, KEYS)
    with workers((dying_relay, migrated.url, point)) as (killed,):
        assert killed.exit_code() == -signal.SIGKILL
    let_leases_end(engine)
    relay_all(engine)
    copies = arrivals(engine)
    attempts = Counter((copy.number, copy.relay, copy.attempt) for copy in copies)
    assert attempts == Counter(dict.fromkeys(expected_attempts(point), len(KEYS)))
    assert {copy.message for copy in copies} == set(ids)
    for copy in copies:
        take(engine, copy)
    assert_exact(engine)


def expected_attempts(point: str) -> Iterator[tuple[int, str, int]]:
    """Number, relay and attempt of the messages that have arrived for each key."""
    for number in NUMBERS:
        if point == "before the batch is noted":
            yield number, "successor", 1
        elif point == "before the send" or (point == "inside the send" and number > 1):
            yield number, "successor", 2
        elif point == "after the completion is committed":
            yield number, "dying", 1
        else:
            yield number, "dying", 1
            yield number, "successor", 2


def test_relays_go_on_after_the_server_crashed(private_postgres: EmbeddedPostgres) -> None:
    """PostgreSQL is killed and restarted twice while three relays and two producers are running. All continue
    by themselves and share the buckets again, and every committed message takes effect once, in its order."""
    engine = create_engine(private_postgres.url)
    METADATA.create_all(engine)
    url = private_postgres.url
    names = ("first", "second", "third")
    with workers(*((relay, url, name, 2.0) for name in names)) as relays:
        with workers(*((producer, url, f"p{number}", number) for number in range(2))):
            for number in range(3):
                before = newest(engine)
                wait_until(lambda before=before: newest(engine) > before + 100)  # type: ignore[misc]
                if number < 2:
                    private_postgres.restart()
                    engine.dispose()
        wait_until(lambda: count(engine, TABLES.message) == 0)
        wait_until(lambda: is_shared(engine, len(names)))
        for each in relays:
            each.terminate()
        assert [each.exit_code() for each in relays] == [0, 0, 0]
    for copy in arrivals(engine):
        take(engine, copy)
    assert_exact(engine)
    engine.dispose()


def test_no_message_is_overlooked_whose_sequence_was_drawn_before_a_crash() -> None:
    """If nothing was committed since, a crash makes PostgreSQL forget which sequence values it has drawn, and
    it draws them again. A relay that had passed those values still finds the messages that get them later."""
    with EmbeddedPostgres({"wal_writer_delay": "10s"}) as crashing:
        engine, relays = create_engine(crashing.url), create_engine(crashing.url)
        for tables in (metadata, METADATA):
            tables.create_all(engine)
        publish(engine, "a1")
        unended = engine.connect()
        publisher, looks = Recorder(), []

        @event.listens_for(relays, "before_cursor_execute")
        def draw(connection: Connection, cursor: object, statement: str, *_: object) -> None:
            if "pg_sequence_last_value" in statement and publisher.names:
                looks.append(statement)
                if len(looks) == 1:
                    produce(unended, range(200), KEYS)

        @event.listens_for(relays, "commit")
        def crash(connection: Connection) -> None:
            if len(looks) == 1:
                looks.append("crash")
                crashing.restart()

        with running(Relay(relays, publisher)):
            wait_until(lambda: len(looks) > 5)
            unended.invalidate()
            engine.dispose()
            publish(engine, "a2")
            wait_until(lambda: publisher.names == ["a1", "a2"])
        for each in (engine, relays):
            each.dispose()
