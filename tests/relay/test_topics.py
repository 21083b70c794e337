"""A topic that the broker is rejecting holds up itself and the keys of its messages, and nothing else."""

import pytest
from sqlalchemy import NullPool, event, update

from inbox_outbox_base.transactions import memories
from outbox import Envelope, Message, Outbox, Outcome, Relay, Unavailable, Unknown
from outbox._relaying.reading import backlog
from tests.support.database import Database
from tests.support.on_servers import on
from tests.support.outbox_publishers import ACCEPTED, TABLES, Recorder, count, waiting
from tests.support.processes import wait_until
from tests.support.relay.crashes import running


def answer(outcome: Outcome) -> Recorder:
    """A publisher that accepts everything except the topic "full"."""

    def of(message: Envelope) -> Outcome:
        return outcome if message.topic == "full" else ACCEPTED

    return Recorder(of)


@pytest.mark.parametrize("outcome", [Unavailable("the queue is full"), Unknown("no answer")], ids=str)
@pytest.mark.parametrize("with_keys", [True, False], ids=["keys", "no keys"])
def test_other_topics_are_sent(postgres: Database, outcome: Outcome, with_keys: bool) -> None:
    """Behind thousands of messages of a rejected topic, those of another topic are sent in the same call, and
    few of the thousands are tried."""
    engine = postgres.engine()
    with engine.begin() as connection:
        for topic, many in (("full", 3_000), ("free", 50)):
            keys = [f"{topic}{number}" if with_keys else None for number in range(many)]
            Outbox().publish_many(connection, [Message(topic, b"x", key) for key in keys])
    publisher = answer(outcome)
    relay = Relay(engine, publisher)
    assert relay.run_once() == 50
    assert {message.topic for message in publisher.accepted} == {"free"}
    tried = len(publisher.sent) - 50
    # At most three first batches: on a busy machine they begin before the first one's outcomes have arrived.
    # Then single messages, after each backoff of the topic.
    assert tried <= 310
    assert count(engine, TABLES.message) == 3_000
    assert relay.run_once() == 0
    assert len(publisher.sent) - 50 - tried <= 10


@on("sqlite")
def test_without_a_pool(migrated: Database) -> None:
    """A relay whose engine keeps no connections keeps one as long as it remembers messages, which it would
    forget with it; otherwise it would read no further than the first scan. In the end it has closed it."""
    engine = migrated.engine(poolclass=NullPool)
    with engine.begin() as connection:
        for topic, many in (("full", 500), ("free", 5)):
            keys = (f"{topic}{number}" for number in range(many))
            Outbox().publish_many(connection, [Message(topic, b"x", key) for key in keys])
    opened: list[object] = []
    closed: list[object] = []
    event.listen(engine, "connect", lambda *each: opened.append(each))
    event.listen(engine, "close", lambda *each: closed.append(each))
    publisher = answer(Unavailable("the queue is full", retry_after=3_600))
    with running(Relay(engine, publisher, batch=10)):
        wait_until(lambda: len(publisher.accepted) == 5)
    assert len(opened) == len(closed)
    assert len(publisher.sent) < 50


def test_other_messages_in_the_same_places(migrated: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a restore of the tables, other messages may have the numbers of those that a relay remembers,
    while it goes on. It compares what it remembers with the rows, and sends them."""
    monkeypatch.setattr(memories, "BELIEVED", 0.1)
    monkeypatch.setattr(backlog, "LOOK_AGAIN", 3_600)  # so that none of the topic is tried again
    engine = migrated.engine()
    with engine.begin() as connection:
        Outbox().publish_many(connection, [Message("full", b"x%d" % each, f"k{each}") for each in range(20)])
    publisher = answer(Unavailable("the queue is full", retry_after=3_600))
    with running(Relay(engine, publisher, poll=0.02)):
        wait_until(lambda: all(row.retry_at for row in waiting(engine).values()))
        with engine.begin() as connection:
            others = TABLES.message.c.key != "k0"
            never_sent = {"topic": "free", "attempts": 0, "retry_at": None, "failing_since": None}
            connection.execute(update(TABLES.message).where(others).values(never_sent))
        wait_until(lambda: len(publisher.accepted) == 19)
    assert {message.topic for message in publisher.accepted} == {"free"}
    assert count(engine, TABLES.message) == 1


def test_it_is_tried_once_in_a_batch(postgres: Database) -> None:
    """Messages to a rejected topic stand at different places in several keys: the publisher gets one of them,
    not one for each place, and the messages behind them in their keys wait."""
    engine = postgres.engine()
    with engine.begin() as connection:
        for depth in range(8):
            topics = [*("free" for _ in range(depth)), "full", "free"]
            Outbox().publish_many(connection, [Message(topic, b"x", f"k{depth}") for topic in topics])
    publisher = answer(Unknown("no answer"))
    assert Relay(engine, publisher).run_once() == sum(range(8))
    assert [message.topic for message in publisher.sent].count("full") == 1
