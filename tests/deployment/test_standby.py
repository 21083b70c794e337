"""What survives a failover, on a real primary and its standby. With synchronous replication everything that
was acknowledged survives; with asynchronous replication the last commits can be lost, but each one only as a
whole."""

import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from sqlalchemy import URL, Connection, Engine, create_engine, select, text

from inbox import Inbox, Outcome, SqlStore, StatusInbox, Verdict
from inbox.errors import LeaseLost
from inbox.schema import tables
from outbox import Outbox, Relay
from tests.support import accounts
from tests.support.database import make_tables
from tests.support.outbox_publishers import TABLES, Recorder, count, messages, names_of, publish
from tests.support.processes import wait_until
from tests.support.replication import Primary, Standby
from tests.support.status_mode.stores import stored
from tests.support.together import Broker, Task

NEW, DUPLICATE = Verdict.NEW, Verdict.DUPLICATE
KEYS = tables().message.c.key


@dataclass
class Pair:
    """A primary and its standby, and the engines that use whichever of them accepts writes."""

    primary: Primary
    standby: Standby
    engines: list[Engine] = field(default_factory=list)

    def engine(self) -> Engine:
        """An engine that looks for the server that accepts writes each time it connects."""
        hosts = [f"127.0.0.1:{server.port}" for server in (self.primary, self.standby)]
        query: dict[str, str | list[str]] = {
            "host": hosts,
            "target_session_attrs": "read-write",
            "connect_timeout": "5",
        }
        url = URL.create("postgresql+psycopg", "postgres", database="postgres", query=query)
        engine = create_engine(url, pool_pre_ping=True, pool_size=20)
        self.engines.append(engine)
        return engine

    def fail_over(self) -> None:
        """Kill the primary for good, and promote the standby."""
        self.primary.kill()
        self.standby.promote()


@pytest.fixture
def pair() -> Iterator[Pair]:
    """A primary and a standby with asynchronous replication."""
    settings = {"max_connections": "60", "fsync": "off"}
    with Primary(settings) as primary:
        make_tables(primary.url)
        accounts.make(engine := create_engine(primary.url))
        engine.dispose()
        with Standby(primary, settings) as standby:
            made = Pair(primary, standby)
            primary.wait_for_standby()
            yield made
            for each in made.engines:
                each.dispose()


@pytest.fixture
def synchronous(pair: Pair) -> Pair:
    """With synchronous replication: a COMMIT is answered once the standby has it on disk."""
    pair.primary.configure(synchronous_standby_names="*")
    pair.primary.until("SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'")
    return pair


def handler(engine: Engine) -> Callable[[str], Outcome]:
    """A handler that adds one to an account and publishes a message about it; it retries for as long as a
    slow failover takes."""

    @Inbox("billing").handler(engine, key=str, attempts=100)
    def add(connection: Connection, message: str) -> None:
        accounts.add(connection)
        Outbox().publish(connection, "added", message, key=message[0])

    return add


def taken(engine: Engine) -> list[str]:
    """The keys in the inbox."""
    with engine.connect() as connection:
        return sorted(str(key) for key in connection.scalars(select(KEYS)))


def test_asynchronous_replication_loses_whole_messages(pair: Pair) -> None:
    """What the standby has not received is lost although it was acknowledged: the inbox row, the effect and
    the outgoing message together. That message may have been sent before. Delivering the messages again
    repairs the loss."""
    engine, publisher = pair.engine(), Recorder()
    add = handler(engine)
    assert [add(key).verdict for key in ("a1", "a2")] == [NEW, NEW]
    Relay(engine, publisher).run_once()
    pair.primary.wait_for_standby()
    with pair.primary.cut_off():
        assert [add(key).verdict for key in ("b1", "b2", "c1")] == [NEW, NEW, NEW]
        Relay(engine, publisher).run_once()
        pair.primary.kill()
    pair.standby.promote()
    assert names_of(publisher.sent) == ["a1", "a2", "b1", "c1", "b2"]
    assert taken(engine) == ["a1", "a2"]
    assert accounts.total(engine) == 2
    assert [add(key).verdict for key in ("a1", "a2", "b1", "b2", "c1")] == [DUPLICATE] * 2 + [NEW] * 3
    assert accounts.total(engine) == 5
    again = Recorder()
    assert Relay(engine, again).run_once() == 3
    assert not {message.id for message in again.sent} & {message.id for message in publisher.sent}


def test_a_step_that_the_standby_lacks(pair: Pair) -> None:
    """A message whose step has committed on the primary alone is not completed on the standby: its next
    delivery runs the step again."""
    inbox = StatusInbox("billing", store=SqlStore(pair.engine()), lease=1, heartbeat=False)

    block = inbox.claim("a1")
    claim = block.__enter__()
    pair.primary.wait_for_standby()
    with pair.primary.cut_off():
        claim.transact("add", accounts.add)
        pair.primary.kill()
    pair.standby.promote()
    with pytest.raises(LeaseLost):
        block.__exit__(None, None, None)
    until = stored(inbox.store, "a1", "billing").lease_until
    assert until is not None
    wait_until(lambda: inbox.store.now() > until)
    with inbox.claim("a1") as claim:
        claim.transact("add", accounts.add)
    assert accounts.total(pair.engines[0]) == 1


@pytest.mark.long
def test_synchronous_replication_acknowledges_what_the_standby_has(synchronous: Pair) -> None:
    """A message whose commit the standby has not received is not acknowledged, and the message that its
    handler published is not sent. After the failover the same call takes it, once."""
    engine, publisher = synchronous.engine(), Recorder()
    add = handler(engine)
    assert add("a1").verdict is NEW
    with synchronous.primary.cut_off():
        delivery = Task(lambda: add("b1").verdict)
        synchronous.primary.until("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
        assert taken(engine) == ["a1"]
        synchronous.primary.kill()
    synchronous.standby.promote()
    assert delivery.result() is NEW
    assert taken(engine) == ["a1", "b1"]
    assert accounts.total(engine) == 2
    assert Relay(engine, publisher).run_once() == 2


def test_a_message_that_only_the_primary_has_does_not_leave(synchronous: Pair) -> None:
    """A message can be visible although the standby lacks it, as after a restart of the primary. It leaves
    once the standby has it."""
    engine, publisher = synchronous.engine(), Recorder()
    relay = Relay(engine, publisher, poll=60, lease=600)
    relaying = Task(relay.run)
    publish(engine, "a1")
    wait_until(lambda: publisher.names == ["a1"] and count(engine, TABLES.message) == 0)
    with synchronous.primary.cut_off():
        with engine.begin() as connection:
            connection.execute(text("SET LOCAL synchronous_commit = local"))
            Outbox(wake=False).publish_many(connection, messages(["b1"]))
        relay._wake_up.wake()
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
        synchronous.primary.until(waiting)
        assert publisher.names == ["a1"]
    wait_until(lambda: publisher.names == ["a1", "b1"])
    relay.stop()
    relaying.result()


def test_a_commit_that_only_the_primary_has(synchronous: Pair) -> None:
    """If the answer to a COMMIT is lost before the standby has it, it is not reported as done just because
    the primary has it: it counts only once the standby has it, too."""
    engine = synchronous.engine()
    add = handler(engine)
    with synchronous.primary.cut_off():
        delivery = Task(lambda: add("a1").verdict)
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
        synchronous.primary.until(waiting)
        ended = "SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity"
        synchronous.primary.until(f"{ended} WHERE wait_event = 'SyncRep'")
        synchronous.primary.until(waiting)
        synchronous.primary.kill()
    synchronous.standby.promote()
    assert delivery.result() is NEW
    assert accounts.total(engine) == 1
    assert taken(engine) == ["a1"]


@pytest.mark.long
def test_a_time_limit_does_not_shorten_the_wait_for_the_standby(synchronous: Pair) -> None:
    """A statement_timeout does not end a COMMIT that waits for the standby; if it did, the message would be
    acknowledged too early."""
    url = synchronous.primary.url.update_query_dict({"options": "-c statement_timeout=1s"})
    limited, engine = create_engine(url), synchronous.engine()
    add = handler(limited)
    with synchronous.primary.cut_off():
        delivery = Task(lambda: add("a1").verdict)
        synchronous.primary.until("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
        time.sleep(1.5)
        assert taken(engine) == []
    assert delivery.result() is NEW
    assert taken(engine) == ["a1"]
    limited.dispose()


MESSAGES = 300
WORKERS = 6


@pytest.mark.long(but_on="asynchronous")
@pytest.mark.parametrize("replication", ["asynchronous", "synchronous"])
def test_a_failover_under_load(pair: Pair, request: pytest.FixtureRequest, replication: str) -> None:
    """The primary is killed and the standby promoted while workers take messages and a relay sends theirs.
    Each key has its row, its effect and its message, or none of them; with synchronous replication each key
    has all three, and nothing is sent with two ids."""
    if replication == "synchronous":
        request.getfixturevalue("synchronous")
    engine, publisher = pair.engine(), Recorder()
    add, done = handler(engine), threading.Semaphore(0)

    def take(message: str) -> Outcome:
        outcome = add(message)
        done.release()
        return outcome

    relay = Relay(engine, publisher, lease=5)
    relaying = Task(relay.run)
    broker = Broker([f"{'abcdefgh'[number % 8]}{number}" for number in range(MESSAGES)])
    delivering = Task(lambda: broker.deliver(take, WORKERS))
    for _ in range(random.randrange(MESSAGES // 4, MESSAGES // 2)):
        assert done.acquire(timeout=60)
    pair.fail_over()
    delivering.result(timeout=120)
    kept = taken(engine)
    assert accounts.total(engine) == len(kept)
    wait_until(lambda: set(names_of(publisher.accepted)) >= set(kept))
    relay.stop()
    relaying.result()
    if replication == "synchronous":
        assert len(kept) == MESSAGES
        assert len({message.id for message in publisher.accepted}) == MESSAGES
