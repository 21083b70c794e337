"""What an endpoint's answers mean, how long a send takes, and what a request has."""

import json
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from standardwebhooks import Webhook

from inbox_outbox_base.words.outgoing import Failed
from outbox import Accepted, Outcome, Refused, Unavailable, Unknown
from outbox.errors import InvalidOption, UnsafeBroker
from outbox.webhook import WebhookEndpoint, WebhookPublisher
from tests.support.answers import published
from tests.support.brokers.webhook_endpoint import LOCAL, Respond, answer, endpoint, envelope, raw
from tests.support.brokers.webhook_program import SECRET

OTHER = "whsec_YW5vdGhlciBzZWNyZXQgdGhhdCBpcyBsb25nIGVub3VnaA=="
OK = answer(204)
LONG = pytest.mark.long


@contextmanager
def publisher(url: str, secrets: Any = SECRET, **options: Any) -> Iterator[WebhookPublisher]:
    """A publisher for an endpoint of this machine."""
    made = WebhookPublisher(WebhookEndpoint(url, secrets), **{"allow": LOCAL, "timeout": 5, **options})
    yield made
    made.close()


def outcome_of(respond: Respond, **options: Any) -> Outcome:
    """The outcome of a message that gets this answer."""
    with endpoint(respond) as found, publisher(found.url, **options) as sender:
        (outcome,) = published(sender, [envelope()])
        return outcome


def outcomes_of(*answers: Respond) -> list[Outcome]:
    """The outcomes of messages that get these answers, one after the other."""
    waiting = list(answers)
    with endpoint(lambda request: waiting.pop(0)(request)) as found, publisher(found.url) as sender:
        return [published(sender, [envelope()])[0] for _ in answers]


def test_what_a_status_means() -> None:
    """Each status has its outcome, with the text of the answer and its Retry-After. A redirect is not
    followed."""
    away = (301, 302, 307, 308, 401, 403, 404, 405, 408, 409, 410, 425, 429, 502, 503, 504)
    expected: dict[int, Outcome] = {
        **dict.fromkeys((200, 201, 202, 204, 299), Accepted()),
        **{status: Refused(f"HTTP {status}: no") for status in (400, 413, 415, 422)},
        **{status: Unavailable(f"HTTP {status}: no", 7.0) for status in away},
        **{status: Failed(f"HTTP {status}: no", 7.0) for status in (500, 501, 505, 599)},
    }
    headers = {"Retry-After": "7", "Location": "http://127.0.0.1:1/"}
    answers = [answer(status, "" if status == 204 else "no", headers) for status in expected]
    assert dict(zip(expected, outcomes_of(*answers), strict=True)) == expected


def test_retry_after() -> None:
    """It is a number of seconds or a date; what is no time is ignored."""
    later, before = (datetime.now(UTC) + timedelta(hours=hours) for hours in (1, -1))
    times = ["0", "120", format_datetime(later, usegmt=True), format_datetime(before, usegmt=True)]
    none = ["soon", "-1", "1.5", "9" * 5_000, "Mon, 99 Foo 99999 99:99:99 GMT", "²"]
    found = outcomes_of(*(answer(503, headers={"Retry-After": each}) for each in (*times, *none)))
    delays = [each.retry_after for each in found if isinstance(each, Unavailable)]
    assert delays[:2] + delays[3:] == [0, 120, 0, *[None] * len(none)]
    assert delays[2] is not None
    assert 3_000 < delays[2] <= 3_600


def test_what_all_messages_would_get() -> None:
    """After three answers in a row that speak of the endpoint, no further requests of the batch begin; their
    messages are unavailable for the same time. After one that speaks of its message, the others are sent."""
    for status, count in ((503, 3), (404, 3), (500, 20), (409, 20), (422, 20)):
        with (
            endpoint(answer(status, headers={"Retry-After": "7"})) as found,
            publisher(found.url, concurrency=1) as sender,
        ):
            outcomes = published(sender, [envelope() for _ in range(20)])
            assert len(found.posted) == count, status
            assert all(isinstance(each, Refused) or each.retry_after == 7 for each in outcomes)  # type: ignore[union-attr]


DRIP, CLOSE = raw(*[b"x"] * 1_000, pause=0.05), raw()
NO_ANSWERS = [
    raw(b"HTTP/1.1 200 OK\r\n", *[b"a: b\r\n"] * 1_000, pause=0.05),
    raw(*[b"HTTP/1.1 100 Continue\r\n\r\n"] * 1_000, pause=0.05),
    raw(b"", pause=30),
    raw(b"HTTP/1.1 200 OK\r\nContent-Le"),
    raw(b"SSH-2.0-OpenSSH_9.2p1\r\n"),
    raw(b"HTTP/1.1 200 OK\r\na: " + b"x" * 200_000),
]


@pytest.mark.parametrize("respond", [DRIP, CLOSE, *(pytest.param(each, marks=LONG) for each in NO_ANSWERS)])
def test_no_answer(respond: Respond) -> None:
    """Once the request was written, an answer that is none leaves the outcome open. Nothing lasts longer than
    the time limit: also not a server that sends a byte now and then."""
    begin = time.monotonic()
    outcome = outcome_of(respond, timeout=2)
    assert isinstance(outcome, Unknown), outcome
    assert time.monotonic() - begin < 15


LARGE = raw(b"Content-Length: 1000000000\r\n\r\n", *[b"x" * 10_000] * 100)
BODIES = [
    raw(b"Transfer-Encoding: chunked\r\n\r\n", *[b"3e8\r\n" + b"y" * 1_000 + b"\r\n"] * 9_000, pause=0.01),
    raw(b"Content-Length: 1000\r\n\r\n", *[b"z"] * 1_000, pause=0.05),
    raw(b"Content-Length: 10\r\n\r\nshort"),
]


@pytest.mark.parametrize("status", [200, 500])
@pytest.mark.parametrize("body", [LARGE, *(pytest.param(each, marks=LONG) for each in BODIES)])
def test_a_body_without_end(status: int, body: Respond) -> None:
    """The status counts. Not more of the body is read than a reason needs, and not longer than a second."""

    def respond(request: Any) -> None:
        request.wfile.write(b"HTTP/1.1 %d X\r\n" % status)
        body(request)

    begin = time.monotonic()
    outcome = outcome_of(respond)
    assert time.monotonic() - begin < 15
    assert type(outcome) is (Accepted if status == 200 else Failed)
    assert len(str(outcome)) < 700


def test_the_time_limit_is_of_the_batch() -> None:
    """What has no answer is unknown, what was not begun was certainly not sent."""
    with endpoint(raw(b"", pause=30)) as found, publisher(found.url, timeout=2, concurrency=2) as sender:
        begin = time.monotonic()
        outcomes = published(sender, [envelope() for _ in range(20)])
        assert time.monotonic() - begin < 15
        assert [type(each) for each in outcomes] == [Unknown] * 2 + [Unavailable] * 18
        assert len(found.posted) == 2


def test_begin_no_more() -> None:
    """A running send ends its requests, and begins no others."""
    with endpoint(raw(b"", pause=0.3)) as found, publisher(found.url, concurrency=1) as sender:
        answers = sender.send([envelope() for _ in range(20)])
        next(answers)
        sender.begin_no_more()
        assert {type(each) for _, each in answers} == {Unknown, Unavailable}
        assert len(found.posted) == 2


def test_connections_are_kept() -> None:
    """Requests share connections, as many as there are at the same time; a lost one is made again."""
    with endpoint(OK) as found, publisher(found.url, concurrency=3) as sender:
        for _ in range(3):
            assert published(sender, [envelope() for _ in range(20)]) == [Accepted()] * 20
        assert found.connections == 3


def test_the_specifications_library() -> None:
    """It verifies what we send with each of the secrets, and refuses it with another one."""
    body = json.dumps({"order": 42, "name": "日本 é"}, ensure_ascii=False).encode()
    with endpoint(OK) as found, publisher(found.url, [SECRET, OTHER]) as sender:
        assert published(sender, [envelope(body, "k", a="b")]) == [Accepted()]
    (got,) = found.posted
    for secret in (SECRET, OTHER):
        assert Webhook(secret).verify(got.body, got.headers) == {"order": 42, "name": "日本 é"}
    with pytest.raises(Exception, match="No matching signature"):
        Webhook("whsec_" + "A" * 32).verify(got.body, got.headers)


def test_what_a_request_has() -> None:
    """The payload is the body, a CloudEvent has the names of its binding, and a trace is there for tools."""
    headers = {"traceparent": "00-ab-cd-01", "ce_type": "order.paid", "ce_subject": 'é %"', "x": "日本\n"}
    message = replace(envelope(bytes(range(256)), "k\n"), headers=headers, id="order.42!")
    with endpoint(OK) as found, publisher(found.url + "/a?b=c") as sender:
        assert published(sender, [message]) == [Accepted()]
    (got,) = found.posted
    assert (got.path, got.body) == ("/hooks/a?b=c", message.payload)
    assert got.headers["content-type"] == "application/json"
    assert got.headers["traceparent"] == "00-ab-cd-01"
    assert got.headers["ce-type"] == "order.paid"
    assert got.headers["ce-subject"] == "%C3%A9%20%25%22"
    assert "x" not in got.headers
    assert json.loads(got.headers["outbox"])["headers"] == headers
    assert "." not in got.headers["webhook-id"]
    assert got.headers["host"].startswith("127.0.0.1:")


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (envelope(None, "k"), "tombstone"),
        (envelope(b"x" * 1_001), "payload: 1001 bytes, and largest=1000"),
        (envelope(b"x", size="y" * 8_000), "as headers of a request, which has 8000 at most"),
        (envelope(b"x", "é" * 250, size="y" * 7_000), "8000 at most"),
    ],
)
def test_what_no_request_can_carry(message: Any, why: str) -> None:
    """It is refused before anything is sent, with the limit and the size; its neighbours are sent."""
    with endpoint(OK) as found, publisher(found.url, largest=1_000) as sender:
        first, second, third = published(sender, [envelope(), message, envelope()])
        assert (first, third) == (Accepted(), Accepted())
        assert isinstance(second, Refused)
        assert why in second.reason
        assert len(found.posted) == 2


def test_endpoints_of_topics() -> None:
    """A mapping or a function says where a topic goes; one without an endpoint waits, and so does one whose
    function fails, without its text."""

    def find(topic: str) -> Any:
        if topic == "broken":
            raise ValueError(SECRET)
        return {"orders": there, "odd": "https://example.org"}.get(topic)

    with endpoint(OK) as found:
        there = WebhookEndpoint(found.url, SECRET)
        for endpoints in ({"orders": there}, find):
            sender = WebhookPublisher(endpoints, allow=LOCAL)
            assert published(sender, [envelope()]) == [Accepted()]
            for topic in ("missing", "broken", "odd"):
                (outcome,) = published(sender, [envelope(topic=topic)])
                assert isinstance(outcome, Unavailable)
                assert SECRET not in str(outcome)
            sender.close()


@pytest.mark.parametrize(
    "url",
    [
        "ftp://example.org/",
        "https://",
        "https:///path",
        "https://user:password@example.org/",
        "https://example.org/#fragment",
        "https://example.org:0/",
        "https://example.org:65536/",
        "https://example.org:x/",
        "https://exämple.org/",
        "https://\uff11\uff12\uff17.0.0.1/",
        "https://example.org/a b",
        "https://example.org/\r\nx: y",
        "https://example.org\\@127.0.0.1/",
        "https://[::1/",
        "https://[fe80::1%25eth0]/",
        "https://a,b/",
        "//example.org/",
        None,
    ],
)
def test_urls_that_are_none(url: Any) -> None:
    """They are refused, without repeating them, since they may hold a password."""
    with pytest.raises(InvalidOption, match=r"^url: expected https://host/path") as error:
        WebhookEndpoint(url, SECRET)
    assert "example" not in str(error.value).replace("https://host/path", "")


@pytest.mark.parametrize(
    "secrets", ["", "whsec_", "whsec_c2hvcnQ=", "whsec_" + "A" * 200, "whsec_?" * 9, [], [1], None, b"x" * 32]
)
def test_secrets_that_are_none(secrets: Any) -> None:
    """They are refused, without repeating them."""
    with pytest.raises(InvalidOption, match=r"^secrets: expected whsec_ and 24 to 64") as error:
        WebhookEndpoint("https://example.org/", secrets)
    assert "c2hvcnQ" not in str(error.value)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"endpoints": "https://example.org/"}, "endpoints: expected a WebhookEndpoint"),
        ({"endpoints": {"orders": "https://example.org/"}}, "endpoints: expected a WebhookEndpoint"),
        ({"allow": "10.0.0.0/8"}, "allow='10.0.0.0/8': expected a sequence"),
        ({"allow": ["10.0.0.1/8"]}, "allow=.*: expected networks"),
        ({"endpoints": WebhookEndpoint("http://example.org/", SECRET)}, "http://example.org has no TLS"),
        ({"tls": True}, "tls: expected a context"),
        ({"largest": 0}, "largest=0"),
        ({"concurrency": 0}, "concurrency=0"),
        ({"timeout": 0}, "timeout=0"),
    ],
)
def test_wrong_options(options: dict[str, Any], why: str) -> None:
    """One error that names the option."""
    with pytest.raises(InvalidOption, match=why):
        WebhookPublisher(**{"endpoints": WebhookEndpoint("https://example.org/", SECRET), **options})


def test_no_text_has_a_secret(caplog: pytest.LogCaptureFixture) -> None:
    """Neither a repr nor a log has the secrets, or the path of the URL, which can be one."""
    caplog.set_level(logging.DEBUG)
    with endpoint(OK) as found, publisher(found.url + "/s3cr3t", [SECRET, OTHER]) as sender:
        published(sender, [envelope()])
        sender.check(30)
        shown = f"{sender!r} {WebhookEndpoint(found.url + '/s3cr3t', SECRET)!r} {caplog.text}"
    for secret in ("s3cr3t", SECRET[6:], OTHER[6:], "the secret of"):
        assert secret not in shown


def test_a_lease_that_is_too_short() -> None:
    """`check` names `timeout`."""
    with (
        publisher("http://127.0.0.1/", timeout=10) as sender,
        pytest.raises(UnsafeBroker, match="timeout=10"),
    ):
        sender.check(10)


def test_one_message_that_has_to_wait() -> None:
    """An answer of 503 for one message, as for one that another worker is handling, does not keep the others
    of its batch from being sent."""
    turns = iter(range(20))
    busy = answer(503, headers={"Retry-After": "7"})
    with (
        endpoint(lambda request: (busy if next(turns) % 3 == 0 else OK)(request)) as found,
        publisher(found.url, concurrency=1) as sender,
    ):
        outcomes = published(sender, [envelope() for _ in range(20)])
    assert [isinstance(each, Accepted) for each in outcomes] == [place % 3 != 0 for place in range(20)]
