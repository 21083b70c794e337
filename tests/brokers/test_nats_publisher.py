"""What a publisher for NATS writes, and how it takes JetStream's answers."""

import json
import re
import socket
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from nats.aio.msg import Msg

from examples.embedded_postgres import free_port
from inbox_outbox_base.brokers.nats.address import parse
from inbox_outbox_base.brokers.nats.message import LONGEST_HEADERS, headers_of, size_of
from inbox_outbox_base.words.outgoing import ACCEPTED, Accepted, Outcome, Refused, Unavailable, Unknown
from outbox._publishers.nats.answers import outcome_of
from outbox.errors import InvalidOption, UnsafeBroker
from outbox.nats import NatsPublisher
from tests.servers import certificates
from tests.servers.nats import LocalNats
from tests.support.answers import published
from tests.support.brokers import nats_accounts
from tests.support.brokers.nats_streams import NatsStreams, envelope
from tests.support.proxy import TcpProxy

pytest_plugins = ["tests.support.brokers.nats_fixtures"]

LIMIT = 1_048_576


@pytest.fixture
def publisher(nats: NatsStreams) -> Iterator[NatsPublisher]:
    found = NatsPublisher(nats.url)
    yield found
    found.close()


@pytest.mark.parametrize(
    ("url", "hosts", "login"),
    [
        ("nats://host", ("host:4222",), ("", "", "")),
        ("nats://me:se%2Fcret@one:1,two:2/", ("one:1", "two:2"), ("me", "se/cret", "")),
        ("tls://se%40cret@[::1]", ("[::1]:4222",), ("", "", "se@cret")),
        ("nats://host?credentials=/a/b&inbox=_I.me.", ("host:4222",), ("", "", "")),
    ],
)
def test_an_address(url: str, hosts: tuple[str, ...], login: tuple[str, ...]) -> None:
    """The scheme says whether there has to be TLS; one word before the host is a token."""
    found = parse(url)
    assert (found.hosts, found.has_tls) == (hosts, url.startswith("tls"))
    assert (found.user, found.password, found.token) == login
    assert "cret" not in f"{found!r} {found}"
    assert (found.credentials, found.inbox) == (("/a/b", "_I.me") if "?" in url else ("", "_INBOX"))


@pytest.mark.parametrize(
    "url",
    [
        "http://host",
        "nats://",
        "nats://me:@host",
        "nats://:secret@host",
        "nats://me:se/cret@host",
        "nats://me:secret@one,me:secret@two",
        "nats://host:99999",
        "nats://host?inbx=_I",
        "nats://host?inbox=",
        "nats://host?inbox=_I.*",
        "nats://host?ca=/a",
        "tls://host?key=/a",
        "nats://a b",
        7,
    ],
)
def test_what_is_no_address(url: Any) -> None:
    """It is refused, and not repeated, because it may hold a password."""
    with pytest.raises(InvalidOption, match=r"^url: ") as caught:
        NatsPublisher(url)
    assert "cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"topics": "orders"}, "topics='orders'"),
        ({"topics": ["orders.*"]}, "topics='orders.*'"),
        ({"timeout": 0}, "timeout=0"),
    ],
)
def test_options(options: dict[str, Any], text: str) -> None:
    """An option that cannot be used is named with its value."""
    with pytest.raises(InvalidOption, match=re.escape(text)):
        NatsPublisher("nats://host", **options)


def test_headers(nats: NatsStreams, publisher: NatsPublisher) -> None:
    """What the outbox knows is one header; what other programs read is beside it, if NATS can carry it."""
    topic = nats.new()
    event = {"ce_specversion": "1.0", "ce_id": "a b", "ce_source": "/é%", "ce_type": "t", "ce_a_b": "x"}
    batch = [
        envelope(topic, b"\0\xff", "k", traceparent="00-ab", tracestate=" a", other="x"),
        envelope(topic, b"", **event),
        envelope(topic, ce_id="no event"),
    ]
    assert published(publisher, batch) == [ACCEPTED] * 3
    first, second, third = (each.headers or {} for each in nats.taken(topic, 3))
    assert {*first} == {"Nats-Msg-Id", "Outbox", "content-type", "traceparent"}
    assert first["traceparent"] == "00-ab"
    assert json.loads(first["Outbox"])["headers"] == batch[0].headers
    written = {name: text for name, text in second.items() if name.startswith("ce-")}
    assert written == {"ce-specversion": "1.0", "ce-id": "a%20b", "ce-source": "/%C3%A9%25", "ce-type": "t"}
    assert {*third} == {"Nats-Msg-Id", "Outbox", "content-type"}


def test_copies(nats: NatsStreams, publisher: NatsPublisher) -> None:
    """A message that is sent twice is stored once. An id that a producer uses again, later or in another
    topic of the stream, is stored again."""
    topic, other = nats.new(), f"test-{uuid4().hex}"
    nats.change(topic, subjects=[topic, other])
    first = envelope(topic, b"1")
    batch = [first, first, replace(first, created_at=datetime(2026, 1, 1, tzinfo=UTC))]
    for each in (*batch, replace(first, topic=other)):
        assert published(publisher, [each]) == [ACCEPTED]
    assert nats.count(topic) == 3


def test_the_largest_message(nats: NatsStreams, publisher: NatsPublisher) -> None:
    """One byte more, of the payload or of the headers, is refused before it is sent, with the size and the
    limit; what fits arrives, and its neighbours with it."""
    topic = nats.new()
    small = envelope(topic, b"")
    headers = headers_of(small)
    fits = replace(small, id=f"{uuid4()}", payload=b"a" * (LIMIT - size_of(headers)))
    large = replace(fits, id=f"{uuid4()}", payload=fits.payload + b"a")
    room = LONGEST_HEADERS - size_of(headers) - len(',"headers":{"a":""}')
    named = replace(small, id=f"{uuid4()}", headers={"a": "a" * room})
    too_named = replace(named, id=f"{uuid4()}", headers={"a": "a" * (room + 1)})
    outcomes = published(publisher, [small, fits, large, named, too_named, envelope(topic)])
    assert outcomes[:2] + outcomes[3:4] + outcomes[5:] == [ACCEPTED] * 4
    for outcome, limit in ((outcomes[2], LIMIT), (outcomes[4], LONGEST_HEADERS)):
        assert isinstance(outcome, Refused)
        assert {f"{limit}", f"{limit + 1}"} <= {*outcome.reason.split()}
    assert nats.count(topic) == 4


@pytest.mark.parametrize("topic", ["a..b", ".a", "a.*", ">", "a b", "a\tb", "a\n", "$JS.API.STREAM.NAMES"])
def test_what_is_no_subject(publisher: NatsPublisher, topic: str) -> None:
    """It is refused by name, and not sent: some subjects are commands."""
    (outcome,) = published(publisher, [envelope(topic)])
    assert isinstance(outcome, Refused)
    assert f"topic={topic!r}" in outcome.reason


def test_a_stream_that_takes_less(nats: NatsStreams, publisher: NatsPublisher) -> None:
    """A full one is unavailable, and takes messages again once there is room; a message that is too large for
    it is refused; one that was deleted is unavailable until it is made again."""
    topic = nats.new(max_msgs=1, discard="new", max_msg_size=10_000)
    assert published(publisher, [envelope(topic)]) == [ACCEPTED]
    (outcome,) = published(publisher, [envelope(topic)])
    assert isinstance(outcome, Unavailable)
    assert "maximum messages exceeded" in outcome.reason
    (outcome,) = published(publisher, [envelope(topic, b"a" * 20_000)])
    assert isinstance(outcome, Refused)
    nats.run(lambda js: js.purge_stream(topic))
    assert published(publisher, [envelope(topic)]) == [ACCEPTED]
    nats.delete(topic)
    (outcome,) = published(publisher, [envelope(topic)])
    assert isinstance(outcome, Unavailable)
    assert "no stream takes the subject" in outcome.reason
    nats.new(topic)
    assert published(publisher, [envelope(topic)]) == [ACCEPTED]


def _error(number: int, code: int, text: str = "t") -> bytes:
    return json.dumps({"error": {"code": code, "err_code": number, "description": text}}).encode()


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        (b'{"stream": "s", "seq": 1}', Accepted),
        (b'{"stream": "s", "seq": 1, "duplicate": true}', Accepted),
        (b"hello", Unknown),
        (b"[]", Unknown),
        (b"{}", Unknown),
        (_error(10054, 400), Refused),
        (_error(10097, 400), Refused),
        (_error(10077, 503, "maximum bytes exceeded"), Unavailable),
        (_error(10077, 503, "message too large"), Refused),
        (_error(10077, 503, "no space left on device"), Unknown),
        (_error(10047, 500), Unavailable),
        (_error(10039, 503), Unavailable),
        (_error(10167, 429), Unavailable),
        (_error(10158, 409), Unknown),
        (_error(99999, 500), Unknown),
    ],
)
def test_answers(said: bytes, kind: type[Outcome]) -> None:
    """What JetStream says is the outcome; what it may have stored all the same is unknown."""
    answer = Msg(_client=None, data=said)  # type: ignore[arg-type]
    assert isinstance(outcome_of(answer, "topic"), kind)


def test_somebody_else_answers(nats: NatsStreams) -> None:
    """A program that listens to the topic and answers is no stream."""
    topic = f"test-{uuid4().hex}"
    publisher = NatsPublisher(nats.url, timeout=1)
    with nats.answering(topic, b"thanks"):
        (outcome,) = published(publisher, [envelope(topic)])
        assert isinstance(outcome, Unknown)
        assert "thanks" in outcome.reason
    publisher.close()


def test_a_lost_answer(nats: NatsStreams) -> None:
    """It is unknown; the same message is stored once. What has not been sent is unavailable."""
    topic = nats.new()
    message = envelope(topic, b"1", "k")
    host, _, port = parse(nats.url).hosts[0].rpartition(":")
    with TcpProxy(host, int(port)) as proxy:
        publisher = NatsPublisher(f"nats://127.0.0.1:{proxy.port}")
        proxy.cut_on(lambda chunk: b"HPUB" in chunk, forward=True)
        first, second = published(publisher, [message, envelope(topic, b"2", "k")])
        assert isinstance(first, Unknown)
        assert isinstance(second, Unavailable)
        assert published(publisher, [message]) == [ACCEPTED]
        publisher.close()
    assert [each.data for each in nats.taken(topic, 1)] == [b"1"]


def test_begin_no_more(nats: NatsStreams) -> None:
    """What has not been sent when the relay is stopped is unavailable, and does not arrive."""
    topic = nats.new()
    publisher = NatsPublisher(nats.url)
    outcomes = dict[int, Outcome]()
    for place, outcome in publisher.send([envelope(topic, key="k") for _ in range(2_000)]):
        publisher.begin_no_more()
        outcomes[place] = outcome
    assert len(outcomes) == 2_000
    accepted = [place for place, outcome in outcomes.items() if outcome == ACCEPTED]
    assert accepted == list(range(len(accepted)))
    assert 0 < len(accepted) < 2_000
    assert {type(outcomes[place]) for place in range(len(accepted), 2_000)} == {Unavailable}
    assert nats.count(topic) == len(accepted)
    assert published(publisher, [envelope(topic)]) == [ACCEPTED]
    publisher.close()


def test_closing_a_send(nats: NatsStreams) -> None:
    """After the iterator is closed, nothing more is sent."""
    topic = nats.new()
    publisher = NatsPublisher(nats.url)
    answers = publisher.send([envelope(topic, key="k") for _ in range(3_000)])
    next(answers)
    answers.close()
    publisher.close()
    there = nats.count(topic)
    assert 0 < there < 3_000
    assert nats.count(topic) == there


def test_the_check(nats: NatsStreams, caplog: pytest.LogCaptureFixture) -> None:
    """It names the setting of a stream that cannot keep the promise."""

    def check(topic: str) -> None:
        publisher = NatsPublisher(nats.url, topics=[topic])
        try:
            publisher.check(20)
        finally:
            publisher.close()

    check(nats.new())
    check(nats.new(max_msgs=10, discard="new", max_age=86_400))
    with pytest.raises(UnsafeBroker, match="topics='missing': no stream"):
        check("missing")
    for settings, said in (
        ({"storage": "memory"}, "storage=memory"),
        ({"no_ack": True}, "no_ack=true"),
        ({"max_age": 3_600}, "max_age=3600"),
        ({"max_bytes": 1_000_000}, "discard=old with max_bytes=1000000"),
        ({"max_msgs_per_subject": 1}, "discard=old with max_msgs_per_subject=1"),
    ):
        with pytest.raises(UnsafeBroker, match=said):
            check(nats.new(**settings))
    assert not caplog.records
    publisher = NatsPublisher(f"nats://me:secret@127.0.0.1:{free_port()}", topics=["orders"])
    publisher.check(20)
    publisher.close()
    assert "not checked" in caplog.text
    assert "me:secret" not in caplog.text


USERS = """
authorization {
  users = [
    { user: all, password: secret }
    { user: silent, password: secret, permissions: { publish: ["$JS.API.>"], subscribe: ">" } }
    { user: deaf, password: secret, permissions: { publish: ">", subscribe: "_I.>" } }
  ]
}
"""


def test_rights(private_nats: LocalNats) -> None:
    """A login that NATS refuses, or that may not do what is needed, is named by the check, and makes messages
    unavailable, however many there are; no text has the password."""
    private_nats.configure(USERS)
    host = private_nats.url.removeprefix("nats://")
    with NatsStreams(f"nats://all:secret@{host}") as streams:
        topic = streams.new()
        for login, query, said in (
            ("nobody:secret@", "", "(?i)refuses the login"),
            ("all:other-secret@", "", "(?i)refuses the login"),
            ("", "", "(?i)refuses the login"),
            ("deaf:secret@", "", "(?i)permissions violation for subscription"),
            ("silent:secret@", "", None),
            ("deaf:secret@", "?inbox=_I", None),
        ):
            publisher = NatsPublisher(f"nats://{login}{host}{query}", timeout=4)
            batch = [envelope(topic, key=f"{number}") for number in range(700)]
            outcomes = published(publisher, batch)
            if query:
                assert outcomes == [ACCEPTED] * len(batch)
            else:
                assert {type(each) for each in outcomes} == {Unavailable}, outcomes[0]
            if said is None:
                publisher.check(20)
            else:
                with pytest.raises(UnsafeBroker, match=said):
                    publisher.check(20)
            assert "secret" not in f"{outcomes} {publisher!r}"
            publisher.close()
        assert streams.count(topic) == 700


def test_a_server_without_jetstream(private_nats: LocalNats) -> None:
    """The check says so; messages are unavailable."""
    private_nats.configure("", jetstream=False)
    publisher = NatsPublisher(private_nats.url)
    with pytest.raises(UnsafeBroker, match="JetStream is not enabled"):
        publisher.check(20)
    (outcome,) = published(publisher, [envelope("orders")])
    assert isinstance(outcome, Unavailable)
    publisher.close()


def test_tls(private_nats: LocalNats, tmp_path: Path) -> None:
    """With tls:// the server has to show a certificate that can be trusted; where TLS is not required, no
    login is sent."""
    certificate, key = certificates.write(tmp_path)
    place = private_nats.url.removeprefix("nats://")
    seen = list[bytes]()
    host, _, port = place.rpartition(":")
    with TcpProxy(host, int(port)) as proxy:
        proxy.cut_on(partial(_noted, seen), forward=True)
        plain = NatsPublisher(f"tls://me:secret@127.0.0.1:{proxy.port}")
        (outcome,) = published(plain, [envelope("orders")])
        plain.close()
    assert isinstance(outcome, Unavailable)
    assert "does not require TLS" in outcome.reason
    assert b"secret" not in b"".join(seen)
    private_nats.configure(f'tls {{ cert_file: "{certificate}", key_file: "{key}" }}')
    url = f"tls://{place}?ca={certificate}"
    with NatsStreams(url) as streams:
        topic = streams.new()
        for address, kind in ((url, Accepted), (f"tls://{place}", Unavailable)):
            publisher = NatsPublisher(address)
            (outcome,) = published(publisher, [envelope(topic)])
            assert isinstance(outcome, kind), outcome
            publisher.close()
        absent = NatsPublisher(f"tls://{place}?ca={tmp_path}/absent.pem")
        with pytest.raises(UnsafeBroker, match=r"absent\.pem"):
            absent.check(20)
        absent.close()


def test_credentials(private_nats: LocalNats, tmp_path: Path) -> None:
    """A file of credentials takes the place of a login. One that is missing, or that the server does not
    know, is named by the check."""
    known, unknown = tmp_path / "known.creds", tmp_path / "unknown.creds"
    private_nats.configure(nats_accounts.written(known))
    nats_accounts.written(unknown)
    publisher = NatsPublisher(f"{private_nats.url}?credentials={known}")
    publisher.check(20)
    with NatsStreams(f"{private_nats.url}?credentials={known}") as streams:
        assert published(publisher, [envelope(streams.new("orders"))]) == [ACCEPTED]
    publisher.close()
    for file, why in ((unknown, "refuses the login"), (tmp_path / "absent.creds", "absent")):
        other = NatsPublisher(f"{private_nats.url}?credentials={file}")
        with pytest.raises(UnsafeBroker, match=why):
            other.check(20)
        other.close()


def _noted(seen: list[bytes], chunk: bytes) -> bool:
    seen.append(chunk)
    return False


def test_several_servers(nats: NatsStreams) -> None:
    """One that is away, and one that says nothing, do not stop the others."""
    topic = nats.new()
    host = parse(nats.url).hosts[0]
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        publisher = NatsPublisher(f"nats://127.0.0.1:{free_port()},127.0.0.1:{port},{host}", timeout=2)
        for _ in range(3):
            assert published(publisher, [envelope(topic)]) == [ACCEPTED]
            publisher.close()
