"""What a publisher for SQS writes, and how it takes SQS's answers."""

import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from examples.embedded_postgres import free_port
from inbox.sqs import SQSConsumer
from inbox_outbox_base.brokers.sqs.address import parse
from inbox_outbox_base.words.outgoing import (
    ACCEPTED,
    Accepted,
    Outcome,
    Refused,
    Unavailable,
    Unknown,
)
from outbox.errors import InvalidOption, UnsafeBroker
from outbox.sqs import SQSPublisher
from tests.support.answers import published
from tests.support.brokers.consumers import payloads, running
from tests.support.brokers.sqs_messages import envelope
from tests.support.brokers.sqs_proxy import SQSRequest, proxy, refusal
from tests.support.brokers.sqs_queues import SQSQueues
from tests.support.processes import wait_until

pytest_plugins = ["tests.support.brokers.sqs_fixtures"]

LIMIT = 262_144


@pytest.fixture
def publisher(sqs: SQSQueues) -> Iterator[SQSPublisher]:
    found = SQSPublisher(sqs.url)
    yield found
    found.close()


@pytest.mark.parametrize(
    ("url", "endpoint", "region"),
    [
        ("sqs://sqs.eu-west-1.amazonaws.com", "https://sqs.eu-west-1.amazonaws.com", "eu-west-1"),
        (
            "sqs://me:se%2Fcret@sqs.cn-north-1.amazonaws.com.cn",
            "https://sqs.cn-north-1.amazonaws.com.cn",
            "cn-north-1",
        ),
        (
            "sqs://vpce-1.sqs.us-east-2.vpce.amazonaws.com/123",
            "https://vpce-1.sqs.us-east-2.vpce.amazonaws.com",
            "us-east-2",
        ),
        ("sqs+http://me:secret@127.0.0.1:9324", "http://127.0.0.1:9324", "us-east-1"),
        ("sqs://queues.example.net?region=ru-central1", "https://queues.example.net", "ru-central1"),
        ("sqs://[::1]:9324", "https://[::1]:9324", "us-east-1"),
    ],
)
def test_an_address(url: str, endpoint: str, region: str) -> None:
    """The scheme says whether there is TLS; the region is in the host or in the query."""
    found = parse(url)
    assert (found.endpoint, found.region) == (endpoint, region)
    assert "cret" not in f"{found!r} {found}"
    assert found.secret in ("", "se/cret", "secret")
    assert found.account == ("123" if "/123" in url else "")


@pytest.mark.parametrize(
    "url",
    [
        "https://sqs.eu-west-1.amazonaws.com",
        "sqs://",
        "sqs://me@host",
        "sqs://me:top-secret@host/queue",
        "sqs://me:top/secret@host",
        "sqs://host:99999",
        "sqs://host?regoin=eu-west-1",
        "sqs://host?region=",
        "sqs://a b",
    ],
)
def test_what_is_no_address(url: str) -> None:
    """It is refused, and not repeated, because it may hold a secret."""
    with pytest.raises(InvalidOption, match=r"^url: ") as caught:
        SQSPublisher(url)
    assert "secret" not in str(caught.value).replace("access-key:secret", "").replace("the secret", "")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"topics": "orders"}, "topics='orders'"),
        ({"topics": ["a.b"]}, "topics='a.b'"),
        ({"queues": {"a.b": "a.b"}}, "queues={'a.b': 'a.b'}"),
        ({"largest": 0}, "largest=0"),
        ({"timeout": 0}, "timeout=0"),
    ],
)
def test_options(options: dict[str, Any], text: str) -> None:
    """An option that cannot be used is named with its value."""
    with pytest.raises(InvalidOption, match=re.escape(text)):
        SQSPublisher("sqs://host", **options)


def test_bodies(sqs: SQSQueues, publisher: SQSPublisher) -> None:
    """A payload that SQS takes as text is the body; any other is Base64, and an empty one is marked."""
    topic = sqs.new(fifo=True)
    bodies = {
        b"{}": "{}",
        "é\t\r\n日本 \U0001f600\u0085".encode(): "é\t\r\n日本 \U0001f600\u0085",
        b"\0": "AA==",
        b"\xff": "/w==",
        "a\ufffe".encode(): "Ye+/vg==",
        b"": "-",
        b"-": "-",
    }
    batch = [envelope(topic, payload, traceparent="00-ab", tracestate="") for payload in bodies]
    assert published(publisher, batch) == [ACCEPTED] * len(batch)
    taken = sqs.taken(topic, len(batch))
    assert sorted(each["Body"] for each in taken) == sorted(bodies.values())
    assert {*taken[0]["MessageAttributes"]} == {"outbox", "traceparent"}


def test_the_fields_of_a_fifo_queue(sqs: SQSQueues, publisher: SQSPublisher) -> None:
    """A key is the message group, or its hash. A message that is sent twice is stored once; an id that the
    producer uses again is stored again."""
    topic = sqs.new(fifo=True)
    first = envelope(topic, b"1", "order-1")
    again = replace(first, created_at=datetime(2026, 1, 1, tzinfo=UTC))
    batch = [first, again, envelope(topic, key="order 2"), envelope(topic)]
    for each in (first, *batch):
        assert published(publisher, [each]) == [ACCEPTED]
    groups = [each["Attributes"]["MessageGroupId"] for each in sqs.taken(topic, 4)]
    assert len(groups) == 4
    assert groups.count("order-1") == 2
    assert batch[3].id in groups
    assert [each for each in groups if re.fullmatch("[0-9a-f]{48}", each)]


@pytest.mark.parametrize("fifo", [True, pytest.param(False, marks=pytest.mark.long)])
def test_the_largest_message(sqs: SQSQueues, publisher: SQSPublisher, fifo: bool) -> None:
    """One byte more is refused before it is sent, with the size and the limit; large messages do not share a
    request."""
    topic = sqs.new(fifo=fifo)
    small = envelope(topic, b"")
    assert published(publisher, [small]) == [ACCEPTED]
    (entry,) = sqs.taken(topic, 1)
    (text,) = (each["StringValue"] for each in entry["MessageAttributes"].values())
    without = len(text) - len(',"body":"empty"') + len("outbox") + len("String")
    fits = replace(envelope(topic, b"a" * (LIMIT - without)), created_at=small.created_at)
    large = replace(fits, id=f"{uuid4()}", payload=fits.payload + b"a")
    outcomes = published(publisher, [envelope(topic), fits, large, replace(fits, id=f"{uuid4()}")])
    assert outcomes[:2] + outcomes[3:] == [ACCEPTED] * 3
    assert isinstance(outcomes[2], Refused)
    assert {f"{LIMIT}", f"{LIMIT + 1}"} <= {*outcomes[2].reason.split()}
    assert len(sqs.taken(topic, 3)) == 3


def test_a_limit_that_is_wrong(sqs: SQSQueues) -> None:
    """If SQS refuses a whole request for one message, its neighbours are sent without it."""
    topic = sqs.new()
    publisher = SQSPublisher(sqs.url, largest=1_048_576)
    outcomes = published(publisher, [envelope(topic), envelope(topic, b"a" * (LIMIT + 1)), envelope(topic)])
    publisher.close()
    assert outcomes[::2] == [ACCEPTED] * 2
    assert isinstance(outcomes[1], Refused)
    assert len(sqs.taken(topic, 2)) == 2


def test_a_topic_with_another_queue(sqs: SQSQueues) -> None:
    """A topic may have a queue of another name, and needs one if no queue can have its name."""
    queue = sqs.new(fifo=True)
    publisher = SQSPublisher(sqs.url, queues={"shop.orders": queue})
    assert published(publisher, [envelope("shop.orders")]) == [ACCEPTED]
    (outcome,) = published(publisher, [envelope("shop.bills")])
    publisher.close()
    assert isinstance(outcome, Unavailable)
    assert "queues=" in outcome.reason
    assert [each.topic for each in sqs.received(queue, 1)] == ["shop.orders"]


def test_a_queue_that_is_made_again(sqs: SQSQueues, publisher: SQSPublisher) -> None:
    """While it is away, messages are unavailable."""
    queue = sqs.new()
    assert published(publisher, [envelope(queue)]) == [ACCEPTED]
    sqs.delete(queue)
    for _ in range(2):
        (outcome,) = published(publisher, [envelope(queue)])
        assert isinstance(outcome, Unavailable), outcome
    sqs.new(queue)
    assert published(publisher, [envelope(queue)]) == [ACCEPTED]


def test_answers(sqs: SQSQueues) -> None:
    """What SQS says of a whole request, or of one message, is the outcome; a lost answer is unknown, and the
    same message is stored once."""
    topic, said, asked = sqs.new(fifo=True), list[Any](), list[str]()

    def answer(operation: str, ask: Any) -> Any:
        asked.append(operation)
        return said[0](ask) if operation == "SendMessageBatch" else ask()

    def failed(code: str, *, is_ours: bool) -> Any:
        entry = {"Id": "0", "SenderFault": is_ours, "Code": code, "Message": "m"}
        return lambda _: (200, {"Successful": [], "Failed": [entry]})

    def lose(ask: Any) -> None:
        ask()

    cases: list[tuple[Any, type[Outcome]]] = [
        (lambda _: refusal("ExpiredToken"), Unavailable),
        (lambda _: refusal("AccessDenied"), Unavailable),
        (lambda _: refusal("RequestThrottled"), Unavailable),
        (lambda _: (500, refusal("InternalFailure")[1]), Unknown),
        (lambda _: (200, {}), Unknown),
        (failed("InvalidMessageContents", is_ours=True), Refused),
        (failed("AWS.SimpleQueueService.InvalidMessageContents", is_ours=True), Refused),
        (failed("KmsThrottled", is_ours=True), Unavailable),
        (failed("InternalError", is_ours=False), Unknown),
        (lose, Unknown),
        (lambda ask: ask(), Accepted),
    ]
    message = envelope(topic)
    with proxy(sqs.url, answer) as url:
        publisher = SQSPublisher(url)
        for one, expected in cases:
            said[:] = [one]
            (outcome,) = published(publisher, [message])
            assert isinstance(outcome, expected), (outcome, expected)
        publisher.close()
    # Before each send that follows neither an acceptance nor a refusal, SQS has to answer.
    assert asked.count("GetQueueUrl") == len(cases) - 2
    assert len(sqs.taken(topic, 1)) == 1


def test_the_check(sqs: SQSQueues, caplog: pytest.LogCaptureFixture) -> None:
    """It names what cannot keep the promise, and accepts a server that does not answer, and a login that may
    not look at queues."""
    topic, said = sqs.new(), list[Any]()

    def answer(operation: str, ask: Any) -> Any:
        return said[0] if operation == "GetQueueAttributes" else ask()

    SQSPublisher(sqs.url, topics=[topic]).check(20)
    with pytest.raises(UnsafeBroker, match="topics='missing'"):
        SQSPublisher(sqs.url, topics=["missing"]).check(20)
    with proxy(sqs.url, answer) as url:
        publisher = SQSPublisher(url, topics=[topic], timeout=3)
        said[:] = [(200, {"Attributes": {"MessageRetentionPeriod": "3600"}})]
        with pytest.raises(UnsafeBroker, match="MessageRetentionPeriod=3600"):
            publisher.check(20)
        said[:] = [refusal("InvalidClientTokenId")]
        with pytest.raises(UnsafeBroker, match="refuses the login"):
            publisher.check(20)
        said[:] = [refusal("AccessDenied")]
        publisher.check(20)
        SQSPublisher(url).check(20)
        assert published(publisher, [envelope(topic)]) == [ACCEPTED]
        said[:] = [(200, {"Attributes": {"MaximumMessageSize": "1024"}})]
        small = SQSPublisher(url)
        (outcome,) = published(small, [envelope(topic, b"a" * 1_024)])
        assert isinstance(outcome, Refused)
        assert "1024" in outcome.reason
        publisher.close()
    with (
        proxy(sqs.url, lambda _, __: refusal("ExpiredToken")) as url,
        pytest.raises(UnsafeBroker, match="refuses the login"),
    ):
        SQSPublisher(url).check(20)
    assert not caplog.records
    with proxy(sqs.url, lambda _, __: (200, {})) as url:
        SQSPublisher(url, topics=[topic]).check(20)
    assert "StrangeAnswer" in caplog.text
    caplog.clear()
    SQSPublisher(f"sqs+http://me:secret@127.0.0.1:{free_port()}", topics=[topic]).check(20)
    assert "is not checked" in caplog.text
    assert "me:secret" not in caplog.text


def test_a_login_that_is_renewed(sqs: SQSQueues, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where boto3 finds the login in a file, publisher and consumer look there again once it has expired."""
    queue, valid, seen = sqs.new(), ["first"], list[bytes]()

    def write(key: str) -> None:
        lines = ("[default]", f"aws_access_key_id={key}", "aws_secret_access_key=s", "aws_session_token=t")
        (tmp_path / "credentials").write_text("\n".join(lines))

    def answer(_: str, ask: SQSRequest) -> Any:
        return ask() if ask.access_key in valid else refusal("ExpiredToken")

    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    write("first")
    with proxy(sqs.url, answer) as url:
        without = url.replace("key:secret@", "")
        publisher = SQSPublisher(without)
        assert published(publisher, [envelope(queue)]) == [ACCEPTED]
        with running(SQSConsumer(without, queue, payloads(seen), dead_letter=print)) as consumer:
            wait_until(lambda: seen == [b"x"])
            valid[:] = ["second"]
            assert isinstance(published(publisher, [envelope(queue)])[0], Unavailable)
            wait_until(lambda: not consumer.probe().is_ready)
            write("second")
            wait_until(lambda: published(publisher, [envelope(queue, b"y")]) == [ACCEPTED])
            wait_until(lambda: b"y" in seen)
        publisher.close()


def test_begin_no_more(sqs: SQSQueues) -> None:
    """What has not been sent when the relay is stopped is unavailable, and does not arrive."""
    topic, goes_on, begun = sqs.new(), threading.Event(), threading.Semaphore(0)

    def answer(operation: str, ask: Any) -> Any:
        if operation == "SendMessageBatch":
            begun.release()
            goes_on.wait(10)
        return ask()

    with proxy(sqs.url, answer) as url:
        publisher = SQSPublisher(url, timeout=20)

        def stop() -> None:
            for _ in range(8):
                begun.acquire(timeout=10)
            publisher.begin_no_more()
            goes_on.set()

        stopping = threading.Thread(target=stop)
        stopping.start()
        outcomes = published(publisher, [envelope(topic) for _ in range(100)])
        stopping.join()
        assert outcomes.count(ACCEPTED) == 80
        assert {type(each) for each in outcomes[80:]} == {Unavailable}
        assert published(publisher, [envelope(topic)]) == [ACCEPTED]
        publisher.close()
    assert len(sqs.taken(topic, 81)) == 81


def test_closing_a_send(sqs: SQSQueues) -> None:
    """After the iterator is closed, nothing more is sent."""
    topic = sqs.new()
    publisher = SQSPublisher(sqs.url)
    answers = publisher.send([envelope(topic) for _ in range(300)])
    next(answers)
    answers.close()
    publisher.close()
    there = sum(sqs.waiting(topic))
    assert 0 < there < 300
    assert len(sqs.taken(topic, there)) == there
