"""A failover loses the last commits while a relay is sending; other messages then get the same sequences."""

from collections.abc import Iterable, Sequence
from itertools import chain, product
from typing import Any

from sqlalchemy import Engine, delete, insert, select, update

from outbox import Envelope, Outbox, Outcome, Refused, Relay, Unavailable, Unknown, status
from tests.support.database import Database
from tests.support.on_servers import WITH_WRITERS, on, spread
from tests.support.outbox_publishers import (
    ACCEPTED,
    TABLES,
    Recorder,
    count,
    dead,
    messages,
    names_of,
    publish,
    relay,
    waiting,
)
from tests.support.processes import wait_until
from tests.support.relay.crashes import running

OUTCOMES = [ACCEPTED, Refused("no"), Unavailable("away"), Unknown("no answer")]
OPTIONS: list[dict[str, Any]] = [{}, {"keep_sent": 60}, {"after_dead": "hold"}]


class Overtaken(Recorder):
    """During its send, the messages are lost, and others get their sequences in the same buckets."""

    def __init__(self, engine: Engine, outcome: Outcome) -> None:
        super().__init__(lambda _: outcome)
        self.engine = engine
        self.relay = Relay(engine, self)

    def send(self, batch: Sequence[Envelope]) -> Iterable[Outcome]:
        with self.engine.begin() as connection:
            lost = connection.execute(select(TABLES.message)).mappings().all()
            connection.execute(delete(TABLES.message))
            rows = [dict(row) | {"id": f"new{row['id'][3:]}", "payload": b"new"} for row in lost]
            connection.execute(insert(TABLES.message), rows)
        self.relay.stop()
        return super().send(batch)


@spread(
    "outcome, options",
    product(OUTCOMES, OPTIONS),
    elsewhere=len(OPTIONS),
    where=(*WITH_WRITERS, "sqlite"),
)
def test_outcomes_are_not_recorded_for_other_messages(
    engine: Engine, outcome: Outcome, options: dict[str, Any]
) -> None:
    """The outcomes of the lost messages are not recorded for the messages that now have their sequences;
    these are sent, in their first attempt, and only then there is a record of them."""
    publish(engine, "a1", "b1", "-1")
    publisher = Overtaken(engine, outcome)
    publisher.relay = Relay(engine, publisher, max_attempts=1, **options)
    publisher.relay.run_once()
    assert [row.attempts for row in waiting(engine).values()] == [0]
    assert not dead(engine)
    assert count(engine, TABLES.sent) == 0
    after = Recorder()
    assert relay(engine, after, keep_sent=60) == 3
    assert count(engine, TABLES.sent) == 3
    assert names_of(after.sent) == ["new"] * 3
    assert {message.attempt for message in after.sent} == {1}


def test_two_messages_with_one_id(engine: Engine) -> None:
    """If another program has written two messages with one id, or one whose id has a record, each is sent,
    and the relay goes on."""
    publish(engine, "a1", "b1")
    with engine.begin() as connection:
        connection.execute(update(TABLES.message).values(id="one"))
    assert relay(engine, Recorder(), keep_sent=60) == 2
    publish(engine, "c1")
    with engine.begin() as connection:
        connection.execute(update(TABLES.message).values(id="one"))
    assert relay(engine, Recorder(), keep_sent=60) == 1
    assert (count(engine, TABLES.sent), len(waiting(engine))) == (1, 0)


@on(*WITH_WRITERS)
def test_relays_of_two_histories_are_two(engine: Engine) -> None:
    """A failover loses a relay's join, and another relay joins before the first one comes back: the first one
    notices that it was retired, joins again, and no message is sent twice or behind a later one of its
    key."""
    publishers = Recorder(), Recorder()
    first, second = (Relay(engine, each, poll=0.1, lease=60) for each in publishers)
    with running(first):
        wait_until(lambda: owned(engine) == [64])
        with engine.begin() as connection:
            connection.execute(update(TABLES.bucket).values(epoch=None))
            connection.execute(delete(TABLES.relay))
        with running(second):
            wait_until(lambda: owned(engine) == [32, 32])
            for number in range(100):
                publish(engine, f"{'abcdefgh'[number % 8]}{number:02}")
            wait_until(lambda: not waiting(engine))
    names = [names_of(each.sent) for each in publishers]
    assert sorted(chain(*names)) == sorted(f"{'abcdefgh'[number % 8]}{number:02}" for number in range(100))
    for sent in names:
        for key in "abcdefgh":
            of_key = [name for name in sent if name.startswith(key)]
            assert of_key == sorted(of_key)


@on(*WITH_WRITERS)
def test_buckets_that_were_taken_in_lost_commits(migrated: Database) -> None:
    """A failover undoes that a relay has taken its buckets: on its next connection it sends nothing from
    them, because another relay owns them."""
    engines, publishers = [migrated.engine() for _ in range(2)], [Recorder() for _ in range(2)]
    relays = [Relay(*each, poll=60, lease=600) for each in zip(engines, publishers, strict=True)]
    engine = migrated.engine()
    with running(relays[0]):
        wait_until(lambda: owned(engine) == [64])
        with running(relays[1]):
            wait_until(lambda: owned(engine) == [32, 32])
            with engine.begin() as connection:
                connection.execute(update(TABLES.bucket).values(epoch=relays[0]._rounds.epoch))
                Outbox(wake=False).publish_many(connection, messages(f"{key}1" for key in "abcdefgh"))
            for each in engines:
                each.dispose()
            for relay in reversed(relays):
                relay._wake_up.wake()
            wait_until(lambda: not waiting(engine))
    assert [len(each.sent) for each in publishers] == [8, 0]


def owned(engine: Engine) -> list[int]:
    """How many buckets each relay has."""
    return sorted(each.buckets for each in status(engine).relays)
