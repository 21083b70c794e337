"""Many topics at the same time: what a relay remembers of them, and what happens to others while they are
being sent."""

import json
import threading
import time
from collections.abc import Iterable, Sequence
from multiprocessing.connection import Connection as Pipe
from typing import Any

import pytest
from sqlalchemy import URL, Connection, Engine, delete, select

from inbox_outbox_base.databases.relaying import Scan, ScanResult
from outbox import Envelope, Outcome, Relay, Unavailable, drop
from outbox._relaying import loop
from outbox._relaying.sending import lanes
from outbox.errors import WrongState
from tests.support.database import Database
from tests.support.outbox_publishers import (
    ACCEPTED,
    TABLES,
    Recorder,
    count,
    name_of,
    publish,
    waiting,
)
from tests.support.processes import wait_until, workers
from tests.support.relay.crashes import open_engine, running

TOPICS = [f"t{number}" for number in range(8)]


@pytest.fixture
def engine(postgres: Database) -> Engine:
    return postgres.engine()


def test_more_topics_than_are_remembered(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """With more topics than a relay remembers, each topic still has its turn, though others have many
    messages."""
    monkeypatch.setattr(lanes, "_MANY", 4)
    monkeypatch.setattr(loop, "MOST_FLIGHTS", 2)
    for topic in TOPICS:
        publish(engine, *(f"-{number}" for number in range(100)), topic=topic)
    cold = [f"cold{number}" for number in range(20)]
    for topic in cold:
        publish(engine, "-1", topic=topic)

    class Slow(Recorder):
        def send(self, batch: Sequence[Envelope]) -> Iterable[Outcome]:
            time.sleep(0.03)
            return super().send(batch)

    publisher = Slow()
    assert Relay(engine, publisher, batch=10).run_once() == 820
    batches = [batch[0].topic for batch in publisher.batches]
    assert max(batches.index(topic) for topic in cold) < 80


def test_topics_that_were_not_taken_are_forgotten(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a rejected topic has no messages left, it uses no memory."""
    monkeypatch.setattr(lanes, "_MANY", 4)
    monkeypatch.setattr(lanes, "_UNUSED", 0.0)
    relay = Relay(engine, Recorder(lambda _: Unavailable("no such topic")))
    for turn in range(3):
        for number in range(20):
            publish(engine, "-1", topic=f"{turn}-{number}")
        relay.run_once()
        with engine.begin() as connection:
            connection.execute(delete(TABLES.message))
    assert len(relay._lanes._lanes) <= 40


class Held(Recorder):
    """A publisher that holds the outcomes of one topic back until it is allowed to report them."""

    def __init__(self, topic: str) -> None:
        super().__init__()
        self.topic = topic
        self.has_begun, self.may_answer = threading.Event(), threading.Event()

    def send(self, batch: Sequence[Envelope]) -> Any:
        if batch[0].topic == self.topic:
            self.has_begun.set()
            assert self.may_answer.wait(60)
        yield from enumerate(super().send(batch))


def test_a_message_is_being_sent_while_other_topics_are(engine: Engine) -> None:
    """A message that is being sent cannot be dropped, however many batches of other topics begin
    meanwhile."""
    (slow,) = publish(engine, "a1", topic="slow")
    publisher = Held("slow")
    relay = Relay(engine, publisher, poll=0.05)
    with running(relay):
        try:
            assert publisher.has_begun.wait(60)
            for number in range(3):
                publish(engine, f"b{number}", topic="quick")
                wait_until(lambda: len(publisher.accepted) == number + 1)  # noqa: B023
                with pytest.raises(WrongState, match="is sending it"):
                    drop(engine, slow)
        finally:
            publisher.may_answer.set()
        wait_until(lambda: not waiting(engine))
    assert len(publisher.accepted) == 4


def test_an_answer_that_comes_while_others_are_written(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until its answer is recorded, a message counts as being sent: the relay may crash before that."""
    publish(engine, "a1", topic="slow")
    noted: list[int] = []

    class Looking(Held):
        def send(self, batch: Sequence[Envelope]) -> Any:
            if batch[0].topic == "quick":
                with engine.connect() as connection:
                    sending = connection.execute(select(TABLES.relay.c.sending)).scalar_one()
                noted.append(sum(map(len, json.loads(sending).values())))
            return super().send(batch)

    publisher = Looking("slow")
    relay = Relay(engine, publisher, poll=0.05)
    scan = relay._rounds._database.scan

    def answer_meanwhile(connection: Connection, wanted: Scan) -> ScanResult:
        found = scan(connection, wanted)
        if any(letter.envelope.topic == "quick" for letter in found.letters):
            publisher.may_answer.set()
            wait_until(lambda: all(flight.is_over for flight in relay._lanes.flights))
        return found

    monkeypatch.setattr(relay._rounds._database, "scan", answer_meanwhile)
    with running(relay):
        try:
            assert publisher.has_begun.wait(60)
            publish(engine, "b1", topic="quick")
            wait_until(lambda: not waiting(engine))
        finally:
            publisher.may_answer.set()
    assert noted == [2]


def test_an_interruption_when_a_batch_has_just_begun(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """If Ctrl-C comes when a batch has just begun, its outcomes are recorded before the relay frees its
    buckets."""
    publish(engine, "a1", topic="slow")
    publisher = Held("slow")
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        if thread.name.startswith("outbox send"):
            assert publisher.has_begun.wait(60)
            threading.Timer(0.3, publisher.may_answer.set).start()
            raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Relay(engine, publisher).run_once()
    assert len(publisher.accepted) == 1
    assert not waiting(engine)


@pytest.mark.parametrize("how", ["interrupt", "terminate"])
def test_a_stop_while_many_topics_are_sent(postgres: Database, how: str) -> None:
    """On Ctrl-C during `run_once`, or SIGTERM during `run`, all batches that are being sent end and are
    recorded, no other one begins, and the buckets are free."""
    engine = postgres.engine()
    for topic in TOPICS:
        publish(engine, f"{topic[1]}1", f"{topic[1]}2", "-1", topic=topic)
    with workers((_relay, postgres.url, how)) as (child,):
        assert child.hear() == "sending"
        getattr(child, how)()
        time.sleep(0.2)
        child.tell("go on")
        assert child.hear() == ("KeyboardInterrupt" if how == "interrupt" else "ended")
        assert child.exit_code() == 0
    assert set(waiting(engine)) == {f"{topic[1]}2" for topic in TOPICS}
    assert {row.attempts for row in waiting(engine).values()} == {0}
    assert count(engine, TABLES.relay) == 0


def _relay(pipe: Pipe, url: URL, how: str) -> None:
    """Run a relay that reports when all topics are being sent, and lets the sends end when it is told to."""
    may_end = threading.Event()
    begun: list[str] = []

    class Waiting(Recorder):
        def send(self, batch: Sequence[Envelope]) -> Iterable[Outcome]:
            begun.append(batch[0].topic)
            if len(begun) == len(TOPICS):
                pipe.send("sending")
                pipe.recv()
                may_end.set()
            assert may_end.wait(60)
            return [ACCEPTED for message in batch if name_of(message)]

    relay = Relay(open_engine(url), Waiting(), poll=0.1)
    try:
        if how == "interrupt":
            relay.run_once()
        else:
            relay.run()
    except KeyboardInterrupt:
        pipe.send("KeyboardInterrupt")
    else:
        pipe.send("ended")
