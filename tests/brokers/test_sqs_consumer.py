"""What a consumer for SQS gets, and what it does with a queue and its settings."""

import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import Connection

from examples.embedded_postgres import free_port
from inbox import Decision, Delivery, Inbox, Outcome, Retention, Verdict, message_id
from inbox._consuming.leased import consumer as leased
from inbox._consuming.sqs.delivery import ATTRIBUTE, attributes_of, delivery_of, object_in
from inbox.errors import GiveUp, InvalidOption
from inbox.sqs import AsyncSQSConsumer, SQSConsumer
from inbox_outbox_base.words.outgoing import ACCEPTED, Unavailable, Unknown
from outbox.sqs import SQSPublisher
from tests.servers.elasticmq import LocalElasticMQ
from tests.support.answers import published
from tests.support.brokers.consumers import SOON, payloads, running
from tests.support.brokers.sqs_messages import envelope, made_by_others, text
from tests.support.brokers.sqs_proxy import SQSRequest, proxy, refusal
from tests.support.brokers.sqs_queues import SQSQueues
from tests.support.database import Database
from tests.support.processes import wait_until

pytest_plugins = ["tests.support.brokers.sqs_fixtures"]

LIMIT = 262_144


def consumer(url: str, queue: str, handler: Any, **options: Any) -> SQSConsumer:
    """One that stores dead letters nowhere, and retries soon."""
    given = {"backoff": SOON, "visibility": 3, "dead_letter": lambda *_: None, **options}
    return SQSConsumer(url, queue, handler, **given)


def test_messages_of_others() -> None:
    """The id is that of the CloudEvent, otherwise SQS's; the group is the key. What is broken stays as it
    is."""

    def made(attributes: dict[str, Any], **system: str) -> Delivery:
        given = {"SentTimestamp": "1767312000000", **system}
        message = {"Body": "x", "MessageId": "m", "MessageAttributes": attributes, "Attributes": given}
        return delivery_of(message, "orders", 2)

    plain = made({"colour": text("blue"), "b": {"DataType": "Binary", "BinaryValue": b"\xff"}})
    assert (plain.id, plain.topic, plain.key, plain.payload) == ("m", "orders", None, b"x")
    assert (plain.headers, plain.attempt) == ({"colour": "blue", "b": "\\xff"}, 2)
    assert plain.created_at == datetime(2026, 1, 2, tzinfo=UTC)
    assert plain.place == "orders, message m"
    assert made({}, MessageGroupId="g").key == "g"
    event = {"ce_specversion": text("1.0"), "ce_id": text("1"), "ce_source": text("/shop")}
    assert made(event).id == '["/shop","1"]'
    for odd in ("[1", "[]", '{"id": ""}', '{"id": 1}', "[" * 100_000):
        found = made({"outbox": text(odd)})
        assert (found.id, found.headers) == ("m", {"outbox": odd})
    strange = {"id": "1", "key": "\ud800", "headers": [1], "body": "base64", "created": "yesterday"}
    found = made({"outbox": text(json.dumps(strange))})
    assert (found.id, found.key, found.headers, found.payload) == ("1", "\\ud800", {}, b"x")
    assert found.created_at == datetime(2026, 1, 2, tzinfo=UTC)
    assert delivery_of({}, "orders", 1).payload == b""
    odd_more = {"a": 1, "b": {"type": 5, "text": "x"}, "c": {"type": "String", "text": 5}, "d e": text("x")}
    odd_more |= {"f": {"type": "Binary", "binary": ""}, "g": {"type": "String", "text": "x"}}
    told = {"MessageAttributes": {"inbox": text(json.dumps({"id": "1", "attributes": odd_more}))}}
    assert {*attributes_of(told)} == {"inbox", "g"}


def test_invalid_options() -> None:
    """An invalid option is rejected by name when the consumer is created, without repeating a secret."""

    async def asynchronous(_: Delivery) -> Outcome:
        return Outcome(Verdict.NEW)

    def make(**options: Any) -> Callable[[], SQSConsumer]:
        given = {"url": "sqs://h", "queue": "q", "handler": payloads([]), **options}
        return lambda: SQSConsumer(**given)

    wrong = {
        "url": make(url="amqp://key:s3cr3t@h"),
        "queue=": make(queue="orders.dead"),
        "handler": make(handler=asynchronous),
        "prefetch": make(prefetch=0),
        "visibility=2": make(visibility=2),
        "visibility=10.5": make(visibility=10.5),
        "max_attempts": make(max_attempts=0),
        "dead_letter='q'": make(dead_letter="q"),
        "dead_letter='a.b'": make(dead_letter="a.b"),
        "dead_letter=5": make(dead_letter=5),
        "concurrency": make(concurrency=0),
    }
    for option, mistake in wrong.items():
        with pytest.raises(InvalidOption, match=f"^{option}") as refused:
            mistake()
        assert "s3cr3t" not in str(refused.value)
    with pytest.raises(InvalidOption, match=r"^handler"):
        AsyncSQSConsumer("sqs://h", "q", 5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="colour"):
        make(colour="blue")()


def test_a_queue_that_is_not_there_yet(sqs: SQSQueues, caplog: pytest.LogCaptureFixture) -> None:
    """A server that has just started may not know its queues: the consumer asks again for a while."""
    seen, queue = list[Any](), f"test-{uuid4().hex}"
    with running(consumer(sqs.url, queue, payloads(seen))):
        wait_until(lambda: f"queue='{queue}': there is no such queue yet" in caplog.text)
        sqs.put(sqs.new(queue), [made_by_others("1")])
        wait_until(lambda: len(seen) == 1)


def test_what_does_not_go_with_the_queue(sqs: SQSQueues, monkeypatch: pytest.MonkeyPatch) -> None:
    """The consumer refuses to start, and names the option."""
    monkeypatch.setattr(AsyncSQSConsumer, "_patience", 0)
    dead, plain = sqs.new(), sqs.new()
    buried = sqs.redriving(dead, 5)
    said = [("ExpiredToken", "^url: SQS refuses the login"), ("AccessDenied", f"^queue='{plain}'")]
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("missing", {}, "^queue='missing'"),
        (plain, {"dead_letter": None}, "^dead_letter=None"),
        (plain, {"dead_letter": "missing"}, "^dead_letter='missing'"),
        (buried, {"max_attempts": 5}, "^max_attempts=5.*maxReceiveCount=5"),
    ]
    for queue, options, why in cases:
        with pytest.raises(InvalidOption, match=why):
            consumer(sqs.url, queue, payloads([]), **options).run()
    for code, why in said:
        with (
            proxy(sqs.url, lambda _, __: refusal(code)) as url,  # noqa: B023 - called within the turn
            pytest.raises(InvalidOption, match=why),
        ):
            consumer(url, plain, payloads([])).run()
    with pytest.raises(ConnectionError):
        consumer(f"sqs+http://me:secret@127.0.0.1:{free_port()}", plain, payloads([])).run()


def test_a_standard_queue(sqs: SQSQueues) -> None:
    """A failed message is delivered again by SQS, as a later attempt; one that the database could not take
    stays, and costs no delivery."""
    queue, seen, deliveries = sqs.new(), list[tuple[bytes, int]](), Counter[bytes]()

    def handle(message: Delivery) -> Outcome:
        seen.append((message.payload, message.attempt))
        deliveries[message.payload] = int(message.raw["Attributes"]["ApproximateReceiveCount"])
        if seen.count((message.payload, message.attempt)) > 1 or message.attempt > 2:
            return Outcome(Verdict.NEW)
        if message.payload == b"fails" and message.attempt == 1:
            return Outcome(Verdict.NEW, error=ValueError("no"))
        if message.payload == b"waits" and message.attempt == 1:
            return Outcome(Verdict.NEW, error=ConnectionError("no"), is_answered=True)
        return Outcome(Verdict.NEW)

    sqs.put(queue, [made_by_others("fails"), made_by_others("waits"), made_by_others("good")])
    with running(consumer(sqs.url, queue, handle)):
        wait_until(lambda: len(seen) >= 5)
        wait_until(lambda: sqs.waiting(queue) == (0, 0))
    assert sorted(seen) == [(b"fails", 1), (b"fails", 2), (b"good", 1), (b"waits", 1), (b"waits", 2)]
    assert deliveries == {b"fails": 2, b"waits": 1, b"good": 1}


def test_a_fifo_queue(sqs: SQSQueues) -> None:
    """A failed message stays with the consumer, and the later ones of its key wait for it, also those that
    came with it."""
    queue, seen, done = sqs.new(fifo=True), Counter[bytes](), list[bytes]()

    def handle(message: Delivery) -> Outcome:
        seen[message.payload] += 1
        if message.payload == b"1" and seen[b"1"] < 3:
            return Outcome(Verdict.NEW, error=ValueError("no"))
        done.append(message.payload)
        return Outcome(Verdict.NEW)

    sqs.put(queue, [made_by_others(body, group="g") for body in "123"] + [made_by_others("4", group="h")])
    with running(consumer(sqs.url, queue, handle)):
        wait_until(lambda: len(done) >= 4 and sqs.waiting(queue) == (0, 0))
    assert [each for each in done if each != b"4"] == [b"1", b"2", b"3"]
    assert seen == {b"1": 3, b"2": 1, b"3": 1, b"4": 1}


def test_the_order_of_a_message_that_is_lost(sqs: SQSQueues, caplog: pytest.LogCaptureFixture) -> None:
    """If SQS takes back a message of a FIFO queue from the consumer, the later ones of its group do not run
    before it is delivered again, although the consumer holds them; others do."""
    queue, seen, handles = sqs.new(fifo=True), list[bytes](), dict[bytes, str]()

    def answer(operation: str, ask: SQSRequest) -> Any:
        entries = ask.fields.get("Entries", [])
        lost = [each["Id"] for each in entries if each["ReceiptHandle"] == handles.get(b"1")]
        if operation != "ChangeMessageVisibilityBatch" or not lost:
            return ask()
        kept = [{"Id": each["Id"]} for each in entries if each["Id"] not in lost]
        return 200, {
            "Successful": kept,
            "Failed": [{"Id": lost[0], "Code": "ReceiptHandleIsInvalid", "SenderFault": True}],
        }

    def handle(message: Delivery) -> Outcome:
        if message.payload == b"1" and not handles:
            handles[b"1"] = message.raw["ReceiptHandle"]
            wait_until(lambda: "no longer this consumer's" in caplog.text)
            sqs.client.change_message_visibility(
                QueueUrl=sqs.at(queue), ReceiptHandle=handles[b"1"], VisibilityTimeout=0
            )
            return Outcome(Verdict.NEW, error=ConnectionError("no database"), is_answered=True)
        seen.append(message.payload)
        return Outcome(Verdict.NEW)

    sqs.put(queue, [made_by_others(body, group="g") for body in "123"] + [made_by_others("4", group="h")])
    with proxy(sqs.url, answer) as url, running(consumer(url, queue, handle, concurrency=4)):
        wait_until(lambda: len(seen) >= 4 and sqs.waiting(queue) == (0, 0))
    assert seen == [b"4", b"1", b"2", b"3"]


def test_strange_answers(sqs: SQSQueues, monkeypatch: pytest.MonkeyPatch) -> None:
    """If something else answers in SQS's place, the consumer asks again, whatever it has asked; a dead letter
    that SQS has not confirmed is not stored, and what it does not say is not so."""
    monkeypatch.setattr(leased, "_REFRESH", 0.2)
    dead = sqs.new()
    queue, asked, told = sqs.redriving(dead, 100), Counter[str](), threading.Event()
    strange: list[Any] = [{}, [1], {"Messages": ["x"], "QueueUrl": [], "Failed": [{}], "Attributes": 5}]

    def answer(operation: str, ask: SQSRequest) -> Any:
        asked[operation] += told.is_set()
        if not told.is_set() or asked[operation] > len(strange):
            return ask()
        return 200, strange[asked[operation] - 1]

    def refuse(message: Delivery) -> Outcome:
        told.set()
        return Outcome(Verdict.MISMATCH if message.payload == b"dead" else Verdict.NEW)

    sqs.put(queue, [made_by_others("dead"), made_by_others("good")])
    with proxy(sqs.url, answer) as url, running(consumer(url, queue, refuse, dead_letter=None)):
        wait_until(lambda: sqs.waiting(queue) == (0, 0) and asked["GetQueueAttributes"] > len(strange))
    assert [letter["Body"] for letter in sqs.taken(dead, 1)] == ["dead"]
    assert min(asked.values()) > len(strange), asked


@pytest.mark.long
def test_another_queue_for_dead_letters(sqs: SQSQueues, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the RedrivePolicy names another one later, letters go there."""
    monkeypatch.setattr(leased, "_REFRESH", 0.2)
    first, second = sqs.new(), sqs.new()
    queue = sqs.redriving(first, 100)
    with running(consumer(sqs.url, queue, lambda _: Outcome(Verdict.MISMATCH), dead_letter=None)) as one:
        wait_until(lambda: one.probe().is_ready)
        policy = {
            "deadLetterTargetArn": f"arn:aws:sqs:us-east-1:000000000000:{second}",
            "maxReceiveCount": 50,
        }
        changed = {"RedrivePolicy": json.dumps(policy)}
        sqs.client.set_queue_attributes(QueueUrl=sqs.at(queue), Attributes=changed)
        sqs.delete(first)
        sqs.put(queue, [made_by_others("1")])
        wait_until(lambda: sqs.waiting(second) == (1, 0))


def test_dead_letters(sqs: SQSQueues) -> None:
    """By default they go where the RedrivePolicy says, whole and with the reason, also those of others; from
    there, they are delivered as they were first."""
    dead = sqs.new(fifo=True)
    queue, seen = sqs.redriving(dead, 100), list[Delivery]()
    ten: Any = {f"n{number}": text(f"{number}") for number in range(9)}
    ten["binary"] = {"DataType": "Binary.png", "BinaryValue": b"\xff\0"}

    def give_up(message: Delivery) -> Outcome:
        seen.append(message)
        return Outcome(Verdict.DEAD, error=GiveUp("no\nway"))

    sqs.put(queue, [made_by_others(group="g-1", **ten)])
    with running(consumer(sqs.url, queue, give_up, dead_letter=None)):
        wait_until(lambda: sqs.waiting(queue) == (0, 0) and seen)
    (letter,) = sqs.taken(dead, 1)
    said = object_in(attributes_of(letter), ATTRIBUTE)
    assert "no way" in said["reason"]
    assert (said["attempt"], said["queue"]) == (1, queue)
    assert len(letter["MessageAttributes"]) == 10
    again, first = delivery_of(letter, dead, 1), seen[0]
    for name in ("id", "topic", "key", "payload", "content_type", "headers", "created_at"):
        assert getattr(again, name) == getattr(first, name), name


@pytest.mark.long
@pytest.mark.parametrize(("room", "has_reason"), [(0, False), (1_000, True)])
def test_a_dead_letter_without_room(sqs: SQSQueues, room: int, has_reason: bool) -> None:
    """The reason is cut, or left out, if the message would be too large with it."""
    queue, dead = sqs.new(), sqs.new()

    def give_up(_: Delivery) -> Outcome:
        return Outcome(Verdict.DEAD, error=GiveUp("é" * 1_000))

    sqs.put(queue, [made_by_others("a" * (LIMIT - room))])
    with running(consumer(sqs.url, queue, give_up, dead_letter=dead)):
        wait_until(lambda: sum(sqs.waiting(dead)))
        wait_until(lambda: sqs.waiting(queue) == (0, 0))
    (letter,) = sqs.taken(dead, 1)
    assert len(letter["Body"]) == LIMIT - room
    assert bool(object_in(attributes_of(letter), ATTRIBUTE).get("reason")) == has_reason


@pytest.mark.long
def test_acknowledgements_share_requests(sqs: SQSQueues) -> None:
    """What is done while a request is on its way is deleted with the next one. A deletion whose answer is
    lost is repeated."""
    queue, asked, seen = sqs.new(), Counter[str](), list[bytes]()

    def answer(operation: str, ask: Any) -> Any:
        asked[operation] += 1
        found = ask()
        if operation == "DeleteMessageBatch":
            time.sleep(0.05)
            return None if asked[operation] == 1 else found
        return found

    sqs.put(queue, [made_by_others(f"{number}") for number in range(30)])
    with proxy(sqs.url, answer) as url, running(consumer(url, queue, payloads(seen), concurrency=10)):
        wait_until(lambda: len(seen) >= 30 and sqs.waiting(queue) == (0, 0))
    assert len(seen) == 30
    assert asked["DeleteMessageBatch"] < 20


@pytest.mark.long
def test_outages(sqs: SQSQueues) -> None:
    """A login that expires, a queue that is deleted and made again: the consumer says that it is not ready,
    and goes on by itself."""
    queue, seen, expired = sqs.new(), list[bytes](), threading.Event()

    def answer(_: str, ask: Any) -> Any:
        return refusal("ExpiredToken") if expired.is_set() else ask()

    with proxy(sqs.url, answer) as url, running(consumer(url, queue, payloads(seen))) as one:
        wait_until(lambda: one.probe().is_ready)
        expired.set()
        wait_until(lambda: not one.probe().is_ready)
        expired.clear()
        sqs.put(queue, [made_by_others("1")])
        wait_until(lambda: seen == [b"1"] and one.probe().is_ready)
        sqs.delete(queue)
        wait_until(lambda: not one.probe().is_ready)
        sqs.new(queue)
        sqs.put(queue, [made_by_others("2")])
        wait_until(lambda: seen == [b"1", b"2"])


@pytest.mark.long
def test_a_server_that_hangs_and_one_that_has_lost_all(private_elasticmq: LocalElasticMQ) -> None:
    """After SIGSTOP for longer than a request may take, and after a restart without queues and messages, the
    consumer and the publisher go on by themselves, once the queue is there again."""
    seen = list[bytes]()
    with SQSQueues(private_elasticmq.url) as queues:
        queue = queues.new()
        publisher = SQSPublisher(private_elasticmq.url, timeout=5)

        def send(body: bytes) -> list[Any]:
            return published(publisher, [envelope(queue, body)])

        with running(consumer(private_elasticmq.url, queue, payloads(seen))) as one:
            wait_until(lambda: send(b"1") == [ACCEPTED])
            wait_until(lambda: seen == [b"1"])
            private_elasticmq.freeze()
            try:
                wait_until(lambda: not one.probe().is_ready)
                assert {type(each) for each in send(b"frozen")} <= {Unavailable, Unknown}
            finally:
                private_elasticmq.thaw()
            wait_until(lambda: send(b"2") == [ACCEPTED])
            wait_until(lambda: b"2" in seen and one.probe().is_ready)
            private_elasticmq.restart_empty()
            wait_until(lambda: not one.probe().is_ready)
            assert {type(each) for each in send(b"3")} <= {Unavailable, Unknown}
            queues.new(queue)
            wait_until(lambda: send(b"3") == [ACCEPTED])
            wait_until(lambda: b"3" in seen and one.probe().is_ready)
        publisher.close()


@pytest.mark.long
def test_a_message_that_is_gone(sqs: SQSQueues, caplog: pytest.LogCaptureFixture) -> None:
    """If SQS no longer has a message that is being handled, its handler ends, and the consumer goes on."""
    queue, seen, goes_on = sqs.new(), list[bytes](), threading.Event()

    def handle(message: Delivery) -> Outcome:
        seen.append(message.payload)
        goes_on.wait(20)
        return Outcome(Verdict.NEW)

    sqs.put(queue, [made_by_others("1")])
    with running(consumer(sqs.url, queue, handle)):
        wait_until(lambda: seen)
        sqs.client.purge_queue(QueueUrl=sqs.at(queue))
        wait_until(lambda: "no longer this consumer's" in caplog.text)
        goes_on.set()
        sqs.put(queue, [made_by_others("2")])
        wait_until(lambda: seen == [b"1", b"2"])
        wait_until(lambda: sqs.waiting(queue) == (0, 0))


@pytest.mark.long  # the database is away for as long as SQS would need for all its deliveries
def test_the_database_is_away_for_long(sqs: SQSQueues) -> None:
    """Longer than the queue's own limit of deliveries allows: nothing is among its dead letters, and
    everything is taken afterwards."""
    dead = sqs.new()
    queue, seen, is_away = sqs.redriving(dead, 3), list[bytes](), threading.Event()
    is_away.set()

    def handle(message: Delivery) -> Outcome:
        if is_away.is_set():
            return Outcome(Verdict.NEW, error=ConnectionError("no database"), is_answered=True)
        seen.append(message.payload)
        return Outcome(Verdict.NEW)

    sqs.put(queue, [made_by_others(f"{number}") for number in range(30)])
    with running(consumer(sqs.url, queue, handle, max_attempts=2, dead_letter=None)):
        time.sleep(15)
        is_away.clear()
        wait_until(lambda: len(seen) >= 30 and sqs.waiting(queue) == (0, 0))
    assert len({*seen}) == 30
    assert sqs.waiting(dead) == (0, 0)


def test_a_message_from_before_the_retention(sqs: SQSQueues, sqlite: Database) -> None:
    """It is a dead letter, since nobody knows whether it was taken; a copy of a younger one is a duplicate,
    also where it is known from memory."""
    queue, dead, taken, delivered = sqs.new(), sqs.new(), list[bytes](), list[bytes]()
    kept = Retention(broker=timedelta(days=4), producer=timedelta(hours=1), network=timedelta(minutes=5))
    inbox = Inbox("billing", retention=kept, remember=100)

    @inbox.handler(sqlite.engine(), key=message_id, message_time=lambda message: message.created_at)
    def bill(_: Connection, message: Delivery) -> None:
        taken.append(message.payload)

    def handle(message: Delivery) -> Outcome:
        delivered.append(message.payload)
        return bill(message)

    young = envelope(queue, b"young")
    old = replace(envelope(queue, b"old"), created_at=datetime.now(UTC) - timedelta(days=5))
    publisher = SQSPublisher(sqs.url)
    assert published(publisher, [young, old]) == [ACCEPTED] * 2
    assert published(publisher, [young]) == [ACCEPTED]
    publisher.close()
    with running(consumer(sqs.url, queue, handle, dead_letter=dead)):
        wait_until(lambda: len(delivered) == 3 and sqs.waiting(queue) == (0, 0))
    assert taken == [b"young"]
    ((letter, reason),) = sqs.dead_letters(dead)
    assert (letter.payload, reason) == (b"old", "too_old")


@pytest.mark.long
def test_a_function_for_dead_letters(sqs: SQSQueues) -> None:
    """It stores them; while it fails, the message stays."""
    queue, stored = sqs.new(), list[tuple[bytes, str]]()
    tries = Counter[bytes]()

    def store(message: Delivery, decision: Decision) -> None:
        tries[message.payload] += 1
        if tries[message.payload] == 1:
            raise OSError("no room")
        stored.append((message.payload, decision.reason))

    def give_up(_: Delivery) -> Outcome:
        return Outcome(Verdict.DEAD, error=GiveUp("no way"))

    sqs.put(queue, [made_by_others("1")])
    with running(consumer(sqs.url, queue, give_up, dead_letter=store)):
        wait_until(lambda: stored and sqs.waiting(queue) == (0, 0))
    ((payload, reason),) = stored
    assert payload == b"1"
    assert "no way" in reason
