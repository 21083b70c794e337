"""Dead letters that are moved back: each is handled again, and takes effect once."""

from dataclasses import replace
from datetime import UTC, datetime
from multiprocessing.connection import Connection as Pipe
from secrets import token_hex
from typing import Any

import pytest

from inbox import Claim, Delivery, Outcome, SqlStore, StatusInbox, Verdict, message_id, retry
from inbox._consuming.kafka import redrive
from inbox._consuming.rocketmq.delivery import delivery_of
from inbox.errors import InvalidOption
from inbox.kafka import redrive as redrive_kafka
from inbox.rabbitmq import Redriven
from inbox.rabbitmq import redrive as redrive_rabbit
from inbox_outbox_base.brokers.rocketmq.message import message_of
from inbox_outbox_base.words.redelivered import AGAIN, CREATED_AT, KNOWN_AS
from outbox import Accepted
from outbox.kafka import KafkaPublisher
from outbox.rabbitmq import RabbitPublisher
from tests.support import accounts
from tests.support.brokers.consumers import SOON, bookkeeping, running, taking
from tests.support.brokers.kafka_consumers import consumer
from tests.support.brokers.kafka_topics import Topics, id_of, values
from tests.support.brokers.kafka_topics import envelope as in_kafka
from tests.support.brokers.rabbit_consumers import consuming
from tests.support.brokers.rabbit_queues import Queues
from tests.support.cli import as_json, in_this_process, succeeded
from tests.support.database import Database
from tests.support.processes import wait_until, workers

pytest_plugins = ["tests.support.brokers.kafka_fixtures", "tests.support.brokers.rabbit_fixtures"]


def put_away(queues: Queues, *ids: str) -> str:
    """A queue whose consumer has made these messages dead letters."""
    queue = queues.new()
    for each in ids:
        queues.put(queue, "cash", id=each, headers={"x-deduplication-header": each})
    with consuming(queues.url, queue, lambda _: Outcome(Verdict.MISMATCH)):
        wait_until(lambda: queues.count(f"{queue}.dead") == len(ids))
    return queue


def moving(_: Pipe, url: str, dead_letters: str) -> None:
    """Work of a child process."""
    redrive_rabbit(url, dead_letters)


def test_what_was_retried_goes_back_to_its_queue(queues: Queues, postgres: Database) -> None:
    """`redrive --retried` moves the letters of messages that the inbox will run again, and leaves
    the others."""
    engine, queue, is_mended, done = postgres.engine(), queues.new(), False, list[str]()
    store = SqlStore(engine)
    inbox = StatusInbox("orders", store=store, lease=60, backoff=SOON, max_attempts=1)

    @inbox.handler(key=message_id)
    def handle(_: Claim, message: Delivery) -> None:
        if not is_mended:
            raise ValueError("not yet")
        done.append(message.id)

    queues.put(queue, "cash", id="a")
    queues.put(queue, "cash", id="b")
    with consuming(queues.url, queue, handle):
        wait_until(lambda: queues.count(f"{queue}.dead") == 2)
    is_mended = True
    retry(store, "orders", "a")

    url = engine.url.render_as_string(hide_password=False)
    arguments = "redrive", f"{queue}.dead", "--broker", queues.url, "--retried", "orders"
    expected = "1 dead letter would be moved back, 1 stays\n"
    assert succeeded(in_this_process(*arguments, "--dry-run", url=url)) == expected
    assert queues.count(queue) == 0
    done_so = as_json(in_this_process(*arguments, "--json", url=url))
    assert done_so == {"moved": 1, "left": 1, "failed": 0}
    with consuming(queues.url, queue, handle):
        wait_until(lambda: done == ["a"] and queues.count(queue) == 0)
        # The other one is dead still: it comes back to the dead letters.
        assert redrive_rabbit(queues.url, f"{queue}.dead") == Redriven(1, 0)
        wait_until(lambda: queues.count(f"{queue}.dead") == 1)
    assert done == ["a"]


def test_a_letter_of_rabbitmq_begins_anew(queues: Queues) -> None:
    """A letter that goes back keeps its id and its headers, and loses what says that it was dead. No plugin
    takes it for a message that it has seen."""
    queue = put_away(queues, "a", "b", "c")
    seen = list[Delivery]()
    assert redrive_rabbit(queues.url, f"{queue}.dead", only=lambda each: each.id == "b") == Redriven(1, 2)
    assert redrive_rabbit(queues.url, f"{queue}.dead", limit=1) == Redriven(1, 1)
    with consuming(queues.url, queue, taking(seen.append)):
        wait_until(lambda: len(seen) == 2)
    assert [(each.id, each.topic, each.attempt) for each in seen] == [("b", queue, 1), ("a", queue, 1)]
    kept = [set(each.raw.header.properties.headers) - {"x-delivery-count"} for each in seen]
    assert kept == [{"inbox-topic"}] * 2


@pytest.mark.long
def test_looking_often_drops_no_letter(queues: Queues) -> None:
    """A quorum queue drops a message that it has got back too often. A redrive gives none back: what it only
    looks at, or could not move, stays as it is."""
    queue = put_away(queues, "a", "b")
    few = queues.new(x_queue_type="quorum", x_delivery_limit=2)
    redrive_rabbit(queues.url, f"{queue}.dead", to=few)
    for dry_run in (True, False) * 3:
        done = redrive_rabbit(queues.url, few, to=queue, only=lambda _: False, dry_run=dry_run)
        assert done == Redriven(0, 2)
    queues.make(full := f"{queue}.full", x_max_length=0, x_overflow="reject-publish")
    for _ in range(4):
        with pytest.raises(ConnectionError, match="; 0 messages were moved before"):
            redrive_rabbit(queues.url, few, to=full)
    found = [each.header.properties for each in queues.take(few)]
    assert sorted(each.message_id or "" for each in found) == ["a", "b"]
    assert [(each.headers or {}).get("x-delivery-count", 0) for each in found] == [0, 0]


def test_a_redrive_that_is_killed(queues: Queues, postgres: Database) -> None:
    """A redrive that is killed loses no letter, and doubles no effect."""
    ids = [f"{number}" for number in range(150)]
    engine, queue = accounts.make(postgres.engine(), ids), queues.new()
    queues.make(f"{queue}.dead")
    queues.put(f"{queue}.dead", *ids)
    with workers((moving, queues.url, f"{queue}.dead")):
        wait_until(lambda: queues.count(queue) > 10)
    assert queues.count(f"{queue}.dead") > 0
    with consuming(queues.url, queue, bookkeeping(engine)):
        redrive_rabbit(queues.url, f"{queue}.dead")
        wait_until(lambda: sum(accounts.totals(engine).values()) >= len(ids) and queues.count(queue) == 0)
    assert set(accounts.totals(engine).values()) == {1}


def test_a_letter_of_kafka_is_the_same_message(topics: Topics) -> None:
    """A record of any producer has the same id, key and time when it comes back; it goes to its
    partition. The next redrive goes on behind it."""
    topic, dead, seen, is_mended = topics.new(partitions=3), topics.new(), list[Delivery](), False

    def handle(message: Delivery) -> Outcome:
        seen.append(message)
        return Outcome(Verdict.NEW if is_mended else Verdict.MISMATCH)

    when = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    topics.put_raw(topic, b"one", b"k", {"note": b"n"}, partition=2, timestamp=int(when.timestamp() * 1_000))
    with running(consumer(topics.address, topic, handle, dead_letter=dead)):
        wait_until(lambda: len(topics.log(dead)) == 1)
        is_mended = True
        config = {"bootstrap.servers": topics.address}
        assert redrive_kafka(config, dead, dry_run=True) == Redriven(1, 0)
        assert redrive_kafka(config, dead) == Redriven(1, 0)
        assert redrive_kafka(config, dead) == Redriven(0, 0)
        wait_until(lambda: len(seen) == 2)
    before, after = seen
    assert (after.id, after.key, after.created_at, after.payload) == (before.id, "k", when, b"one")
    assert (dict(after.headers), after.raw.partition(), after.raw.offset()) == ({"note": "n"}, 2, 1)


def test_letters_of_another_program(
    topics: Topics, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A letter without our headers goes where `to` says, and is the same message each time. One that is too
    large is named, and the others go on. Nothing of the consumers' group is used."""
    dead, target = topics.new(), topics.new(max_message_bytes="2000")
    config = {"bootstrap.servers": topics.address, "group.id": "payments"}
    topics.put(dead, "one", token_hex(5_000), "three", key="k")
    with pytest.raises(InvalidOption, match=f"to=None: {dead}-0-0 names no topic"):
        redrive_kafka(config, dead)
    assert redrive_kafka(config, dead, to=target) == Redriven(2, 0, failed=1)
    assert f"{dead}-0-1, id {dead}-0-1-" in caplog.text
    redrive_kafka(config, dead, to=target, only=lambda each: len(each.payload) < 10)
    moved = topics.log(target)
    assert values(moved) == ["one", "three"] * 2
    assert len({id_of(each) for each in moved}) == 2
    with pytest.raises(InvalidOption, match="config: "):
        redrive_kafka({"nonsense": "1"}, dead)
    monkeypatch.setattr(redrive, "_PATIENCE", 0.5)
    with pytest.raises(ConnectionError, match=f"{dead}: .*; 0 messages were moved before"):
        redrive_kafka({"bootstrap.servers": "127.0.0.1:1"}, dead)


def test_a_letter_of_kafka_that_is_not_whole(topics: Topics, caplog: pytest.LogCaptureFixture) -> None:
    """A letter without its value is completed from its topic; if the message is not there any more, the
    letter is counted and named."""
    topic, dead, value = topics.new(), topics.new(max_message_bytes="2000"), token_hex(5_000)
    with running(consumer(topics.address, topic, lambda _: Outcome(Verdict.MISMATCH), dead_letter=dead)):
        topics.put(topic, value, key="k")
        wait_until(lambda: len(topics.log(dead)) == 1)
    config = {"bootstrap.servers": topics.address}
    assert redrive_kafka(
        config, dead, limit=1, only=lambda each: len(each.payload) == len(value)
    ) == Redriven(1, 0)
    _, copy = topics.log(topic)
    assert (copy.key(), copy.value()) == (b"k", value.encode())
    topics.make_again(topic)
    topics.put(topic, "another in its place")
    assert redrive_kafka(config, dead) == Redriven(0, 0, failed=1)
    assert "cannot be moved back: a part of it was left out" in caplog.text


def test_what_is_no_name() -> None:
    """What is no name is refused before a broker is asked."""
    rabbit: Any = redrive_rabbit, "amqp://127.0.0.1:1", "queue"
    kafka: Any = redrive_kafka, {"bootstrap.servers": "-"}, "topic"
    for moves, where, what in (rabbit, kafka):
        for name, to in ((None, None), (b"dead", None), ("", "orders")):
            with pytest.raises(InvalidOption, match=f"dead_letters={name!r}: expected the name of a {what}"):
                moves(where, name, to=to)
        with pytest.raises(InvalidOption, match=f"to=7: expected the name of a {what}"):
            moves(where, "orders.dead", to=7)


def test_what_is_delivered_again_is_the_first_message(queues: Queues, topics: Topics) -> None:
    """A message that `retry(..., deliver=True)` has published comes to its handler with the id and time that
    it had at first, and no header more, with each broker. The broker gets another id. Without such an id, a
    header with that name is the producer's own."""
    queue, topic, seen = queues.new(), topics.new(), list[Delivery]()
    first = {KNOWN_AS: "first id", CREATED_AT: "2026-01-02T03:04:05+01:00"}
    sent = replace(in_kafka("-", "x", headers={**first, "note": "n"}), id=f"{AGAIN}7")
    own = replace(sent, id="7", headers={KNOWN_AS: "ann"})
    rabbit, kafka = RabbitPublisher(queues.url), KafkaPublisher({"bootstrap.servers": topics.address})
    assert [*rabbit.send([replace(sent, topic=queue)])] == [(0, Accepted())]
    assert [each.header.properties.message_id for each in queues.take(queue)] == [sent.id]
    for each in sent, own:
        assert [*rabbit.send([replace(each, topic=queue)])] == [(0, Accepted())]
        assert [*kafka.send([replace(each, topic=topic)])] == [(0, Accepted())]
    handle = taking(seen.append)
    with consuming(queues.url, queue, handle), running(consumer(topics.address, topic, handle)):
        wait_until(lambda: len(seen) == 4)
    rocket = (
        delivery_of(message_of(replace(each, topic="orders"), is_fifo=False), 1) for each in (sent, own)
    )
    found = sorted((each.id, each.headers, each.created_at) for each in (*seen, *rocket))
    expected = ("first id", {"note": "n"}, datetime(2026, 1, 2, 2, 4, 5, tzinfo=UTC))
    assert found == [("7", own.headers, own.created_at)] * 3 + [expected] * 3
