"""Dead letters of SQS that are moved back."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from inbox import Action, Decision, Delivery, Outcome, Verdict
from inbox._consuming.sqs.dead_letters import dead_letter
from inbox._consuming.sqs.delivery import ATTRIBUTE, delivery_of, object_in
from inbox.errors import InvalidOption
from inbox.sqs import Redriven, SQSConsumer, redrive
from inbox_outbox_base.brokers.sqs.message import size_of
from inbox_outbox_base.brokers.sqs.queue import Queue
from outbox.sqs import SQSPublisher
from tests.support.answers import published
from tests.support.brokers.consumers import SOON, running
from tests.support.brokers.sqs_messages import envelope, made_by_others
from tests.support.brokers.sqs_proxy import SQSRequest, proxy
from tests.support.brokers.sqs_queues import SQSQueues
from tests.support.cli import error, in_this_process, succeeded
from tests.support.processes import wait_until

pytest_plugins = ["tests.support.brokers.sqs_fixtures"]

REFUSED = Outcome(Verdict.MISMATCH)


@pytest.mark.parametrize("fifo", [True, pytest.param(False, marks=pytest.mark.long)])
def test_letters_go_back_to_their_queue(sqs: SQSQueues, fifo: bool) -> None:
    """Each is the same message for its handler, with its id, key, time and headers, also one of another
    program; those that are not wanted stay. What is one of them and behind another of its key is found."""
    queue, dead, seen = sqs.new(fifo=fifo), sqs.new(fifo=fifo), list[Delivery]()
    batch = [
        envelope("orders", b"%d" % number, "k", note="é") for number in range(12)
    ]  # more than an answer has
    publisher = SQSPublisher(sqs.url, queues={"orders": queue})
    for message in batch:
        published(publisher, [message])
    sqs.put(queue, [made_by_others("theirs", group="theirs" if fifo else "")])
    publisher.close()

    def handle(message: Delivery) -> Outcome:
        seen.append(message)
        return REFUSED if len(seen) <= 13 else Outcome(Verdict.NEW)

    with running(SQSConsumer(sqs.url, queue, handle, dead_letter=dead, backoff=SOON, visibility=10)):
        wait_until(lambda: sqs.waiting(dead) == (13, 0))
        before = {each.id: each for each in seen}
        wanted = {batch[11].id, *(each.id for each in seen if each.payload == b"theirs")}
        for dry_run in (True, False):
            done = redrive(sqs.url, dead, only=lambda each: each.id in wanted, dry_run=dry_run)
            assert done == Redriven(2, 11)
        wait_until(lambda: len(seen) == 15)
        assert redrive(sqs.url, dead, limit=1) == Redriven(1, 0)
        assert redrive(sqs.url, dead) == Redriven(10, 0)
        wait_until(lambda: len(seen) == 26)
    assert {each.id for each in seen[13:15]} == wanted
    for each in seen[13:]:
        changing: dict[str, Any] = {"raw": None, "place": None}
        assert replace(each, **changing) == replace(before[each.id], **changing)
    assert sqs.waiting(dead) == (0, 0)


def test_letters_that_sqs_has_put_away(sqs: SQSQueues) -> None:
    """They go to the queue that is given. Without it, and where there is no such queue, nothing is moved, and
    the letters stay for others."""
    queue, dead = sqs.new(), sqs.new()
    sqs.put(dead, [made_by_others("1"), made_by_others("2")])
    wrong: dict[str, dict[str, Any]] = {
        "to=None": {},
        "to='missing'": {"to": "missing"},
        f"to='{dead}'": {"to": dead},
    }
    for why, options in wrong.items():
        with pytest.raises(InvalidOption, match=f"^{why}"):
            redrive(sqs.url, dead, **options)
        assert sqs.waiting(dead) == (2, 0)
    with pytest.raises(InvalidOption, match=r"^dead_letters='missing'"):
        redrive(sqs.url, "missing")
    to = sqs.url.replace("key:secret", "key:s3cr3t")
    text = succeeded(in_this_process("redrive", dead, "--broker", to, "--into", queue))
    assert "2 dead letters were moved back, 0 stay" in text
    assert [each.payload for each in sqs.received(queue, 2)] == [b"1", b"2"]
    said = error(in_this_process("redrive", dead, "--broker", "sqs://key:s3cr3t@host:port"))
    assert "--broker: expected sqs://" in said
    assert "s3cr3t" not in said


def test_what_a_server_may_do(sqs: SQSQueues) -> None:
    """A letter that SQS delivers twice, although it is hidden, does not end the call. One that SQS does not
    confirm in its queue stays."""
    dead, queue, asked = sqs.new(), sqs.new(), Counter[str]()
    sqs.put(dead, [made_by_others("stays")])
    first = list[Any]()

    def answer(operation: str, ask: SQSRequest) -> Any:
        asked[operation] += 1
        if operation == "ReceiveMessage" and asked[operation] == 1:
            first.append(ask())
            sqs.put(dead, [made_by_others("goes")])
        elif operation == "SendMessage" and asked[operation] == 1:
            return 200, {}
        return first[0] if operation == "ReceiveMessage" and asked[operation] <= 2 else ask()

    def wanted(each: Delivery) -> bool:
        return each.payload == b"goes"

    with proxy(sqs.url, answer) as url:
        with pytest.raises(ConnectionError, match="0 messages were moved before"):
            redrive(url, dead, to=queue, only=wanted)
        assert sqs.waiting(dead) == (2, 0)
        assert redrive(url, dead, to=queue, only=wanted) == Redriven(1, 1)
    assert [each.payload for each in sqs.received(queue, 1)] == [b"goes"]


def test_a_letter_without_a_key(sqs: SQSQueues) -> None:
    """It has none when it comes back, although a FIFO queue has given it a group meanwhile."""
    queue, dead, seen = sqs.new(), sqs.new(fifo=True), list[Delivery]()

    def handle(message: Delivery) -> Outcome:
        seen.append(message)
        return REFUSED if len(seen) == 1 else Outcome(Verdict.NEW)

    sqs.put(queue, [made_by_others("1")])
    with running(SQSConsumer(sqs.url, queue, handle, dead_letter=dead, backoff=SOON, visibility=10)):
        wait_until(lambda: sqs.waiting(dead) == (1, 0))
        assert redrive(sqs.url, dead) == Redriven(1, 0)
        wait_until(lambda: len(seen) == 2)
    assert [(each.id, each.key) for each in seen] == [(seen[0].id, None)] * 2


def test_a_letter_that_is_too_large(sqs: SQSQueues, caplog: pytest.LogCaptureFixture) -> None:
    """It is counted, and stays. If there is no room for its id only, it is moved, with a warning."""
    dead, queue = sqs.new(), sqs.new()
    sqs.put(dead, [made_by_others("a" * 1_025), made_by_others("b" * 1_000)])

    def answer(operation: str, ask: SQSRequest) -> Any:
        small = {"Attributes": {"MaximumMessageSize": "1024"}}
        return (200, small) if operation == "GetQueueAttributes" else ask()

    with proxy(sqs.url, answer) as url:
        assert redrive(url, dead, to=queue) == Redriven(1, 0, 1)
    assert "too large for queue" in caplog.text
    assert "no room for its id" in caplog.text
    assert (sqs.waiting(dead), sqs.waiting(queue)) == ((1, 0), (1, 0))


def test_a_letter_with_little_room() -> None:
    """The reason is cut first, and what SQS knew of the message is left out last."""
    given = {"Body": "x" * 1_000, "MessageId": "m", "Attributes": {"SentTimestamp": "1767312000000"}}
    decision = Decision(Action.DEAD_LETTER, reason="why" * 100)
    said = []
    for room in (500, 200, 130, 90, 0):
        target = Queue("dead", "", 1_000 + room, None, None, 0)
        entry = dead_letter(replace(target, name="orders"), target, delivery_of(given, "orders", 1), decision)
        found = object_in(entry["MessageAttributes"], ATTRIBUTE)
        assert size_of(entry) <= target.largest
        said.append((len(found.get("reason", "")), found.get("id")))
    assert said[0] == (300, "m")
    assert said[3:] == [(0, "m"), (0, None)]
    assert sorted(said, reverse=True, key=lambda each: each[0]) == said
