"""A relay runs until it is stopped, whatever the broker does."""

import os
import signal
import time
from collections.abc import Iterable, Sequence
from multiprocessing.connection import Connection

import pytest
from sqlalchemy import URL, Engine, create_engine

from outbox import Envelope, Outcome, Relay, Unavailable
from outbox._relaying.settings import RelaySettings
from outbox.errors import InvalidOption
from tests.support.database import Database
from tests.support.on_servers import on
from tests.support.outbox_publishers import (
    ACCEPTED,
    TABLES,
    Recorder,
    count,
    let_records_end,
    name_of,
    publish,
    waiting,
)
from tests.support.processes import wait_until, workers
from tests.support.relay.crashes import running
from tests.support.relay.servers import server  # noqa: F401 - where its databases are

PENDING = 20_000
KEYS = [chr(0x4E00 + number) for number in range(1_000)]
A_HANDFUL = 10
"""The most sends per second to a broker that is unavailable."""


def test_it_relays_what_is_there_and_what_comes(engine: Engine) -> None:
    """A relay sends waiting and new messages until `stop` is called from another thread; then its buckets are
    free."""
    publish(engine, "a1", "b1")
    publisher = Recorder()
    relay = Relay(engine, publisher)
    with running(relay):
        for number in range(2, 6):
            wait_until(lambda expected=number: len(publisher.accepted) == 2 * expected - 2)  # type: ignore[misc]
            publish(engine, f"a{number}", f"b{number}")
        wait_until(lambda: len(publisher.accepted) == 10)
        relay.stop()
    assert publisher.of("a") == ["a1", "a2", "a3", "a4", "a5"]
    assert not waiting(engine)
    assert count(engine, TABLES.relay) == 0


@on("sqlite")
def test_one_that_was_stopped_does_not_begin(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    """A relay that was stopped before it runs sends nothing, and says so."""
    publish(engine, "a1")
    publisher = Recorder()
    stopped = Relay(engine, publisher)
    stopped.stop()
    stopped.run()
    assert stopped.run_once() == 0
    assert not publisher.sent
    assert list(waiting(engine)) == ["a1"]
    assert caplog.text.count("was stopped before, and sends nothing: make another one") == 2


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_one_that_is_running(engine: Engine) -> None:
    """It is not run a second time, neither in another thread nor in a fork; afterwards it is."""
    publish(engine, "a1")
    relay = Relay(engine, publisher := Recorder())
    with running(relay):
        wait_until(lambda: publisher.sent)
        for run in (relay.run_once, relay.run):
            with pytest.raises(InvalidOption, match="is running; make another one"):
                run()
        child = os.fork()
        if not child:
            try:
                relay.run_once()
            except InvalidOption:
                os._exit(7)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    other = Relay(engine, publisher)
    publish(engine, "a2", "a3")
    assert (other.run_once(), other.run_once()) == (2, 0)


@on("sqlite")
def test_sigterm_finishes_the_batch(migrated: Database) -> None:
    """A process that gets SIGTERM during a send records what was accepted, frees its buckets, and exits
    without an error."""
    engine = migrated.engine()
    publish(engine, "a1", "a2", "b1")
    with workers((_relay_until_sigterm, migrated.url)) as (child,):
        assert child.hear() == "sending"
        child._signal(signal.SIGTERM)
        child.tell("go on")
        assert child.exit_code() == 0
    assert list(waiting(engine)) == ["a2"]
    assert count(engine, TABLES.relay) == 0


def _relay_until_sigterm(pipe: Connection, url: URL) -> None:
    """Run a relay that reports when its send begins; the send goes on when it is told to and SIGTERM has
    arrived."""
    engine = create_engine(url)

    def answer(_: Envelope) -> Outcome:
        if not relay.stopped:
            pipe.send("sending")
            pipe.recv()
            wait_until(lambda: relay.stopped)
        return ACCEPTED

    relay = Relay(engine, Recorder(answer))
    with relay.stopping_on_sigterm():
        relay.run()
    engine.dispose()


@on("sqlite")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, -signal.SIGTERM), (signal.SIGINT, 1)])
def test_a_second_signal_ends_a_send_that_never_returns(
    migrated: Database, number: signal.Signals, code: int
) -> None:
    """If the publisher never returns, the first signal ends nothing; another one ends the process, as it
    would without a relay. The message stays."""
    engine = migrated.engine()
    publish(engine, "a1")
    with workers((_relay_without_end, migrated.url)) as (child,):
        assert child.hear() == "sending"
        child._signal(number)
        child._signal(number)  # a supervisor may send it twice
        assert child.hear() == "stopped"
        time.sleep(1.1)
        child._signal(number)
        assert child.exit_code() == code
    assert list(waiting(engine)) == ["a1"]


def _relay_without_end(pipe: Connection, url: URL) -> None:
    """Run a relay whose sends do not return, in a block that handles signals as well."""

    def answer(_: Envelope) -> Outcome:
        pipe.send("sending")
        wait_until(lambda: relay.stopped)
        pipe.send("stopped")
        time.sleep(3_600)
        return ACCEPTED

    relay = Relay(create_engine(url), Recorder(answer))
    with relay.stopping_on_sigterm(signal.SIGINT):
        relay.run()


def test_all_expired_records_of_sent_messages_are_deleted(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relay deletes all expired records of sent messages when it starts, however many there are, not only
    one portion each time, and although it keeps none itself."""
    monkeypatch.setattr(RelaySettings, "tend_every", 3_600)
    publish(engine, *(f"-{number}" for number in range(2_500)))
    assert Relay(engine, Recorder(), keep_sent=3_600).run_once() == 2_500
    assert count(engine, TABLES.sent) == 2_500
    let_records_end(engine)
    with running(Relay(engine, Recorder(), lease=7_200)):
        wait_until(lambda: count(engine, TABLES.sent) == 0, timeout=30)


class Broker(Recorder):
    """A broker that can be unavailable, and counts what it is sent meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.is_away = True
        self.asked = 0
        """How often `send` was called while the broker was unavailable."""
        self.failed = 0
        """How many messages these calls contained."""

    def send(self, batch: Sequence[Envelope]) -> Iterable[Outcome]:
        if not self.is_away:
            return super().send(batch)
        self.asked += 1
        self.failed += len(batch)
        return [Unavailable("away") for _ in batch]


@on("postgresql")
def test_a_broker_that_is_away(engine: Engine) -> None:
    """While thousands of messages wait and the broker accepts nothing, the relay tries it with single
    messages, a few times a second at most. When the broker is back, everything is sent soon, each key in
    order."""
    publish(engine, *(f"{KEYS[number % 1_000]}{number}" for number in range(PENDING // 2)))
    publish(engine, *(f"-{number}" for number in range(PENDING // 2)))
    publisher = Broker()
    begun = time.monotonic()
    with running(Relay(engine, publisher)):
        wait_until(lambda: publisher.asked >= 4)
        asked, failed, seconds = publisher.asked, publisher.failed, time.monotonic() - begun
        publisher.is_away = False
        wait_until(lambda: len(publisher.accepted) == PENDING, timeout=120)
    assert asked <= 1 + A_HANDFUL * seconds
    assert failed <= 100 + asked
    assert len(publisher.batches) < PENDING / 20
    assert count(engine, TABLES.message) == 0
    for key in KEYS:
        names = [int(name[1:]) for name in publisher.of(key)]
        assert names == sorted(names)
    assert len({name_of(each) for each in publisher.accepted}) == PENDING
