"""What every publisher promises to a relay, whatever its broker is; and the consumer on the other side."""

import threading
import time
from dataclasses import replace
from functools import partial

import pytest

from outbox import Accepted, Outcome, Publisher, Refused, Unavailable
from outbox.errors import UnsafeBroker
from tests.support.answers import published
from tests.support.publisher_places import PLACES, Place, closing, envelope, payloads
from tests.support.together import together

pytest_plugins = ["tests.support.rabbit_fixtures", "tests.support.kafka_fixtures"]


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> Place:
    """Each broker in turn."""
    return PLACES[request.param](request)


def test_it_is_a_publisher(place: Place) -> None:
    """It has what a relay needs, and says how long a send can take where there is a limit."""
    with closing(place.publisher()) as publisher:
        assert isinstance(publisher, Publisher)
        assert getattr(publisher, "timeout", 1.0) > 0


def test_an_empty_batch(place: Place) -> None:
    """No messages, no answers."""
    with closing(place.publisher()) as publisher:
        assert published(publisher, []) == []


def test_everything_arrives_as_it_was_published(place: Place) -> None:
    """Id, key, payload, content type, headers and time are the consumer's, byte for byte."""
    topic = place.topic()
    sent = [
        envelope(topic, bytes(range(256)), key="order-42"),
        envelope(topic, b"", key="Ärger 日本 '\"\n"),
        envelope(topic, b"\xff\xfe", key=None),
        envelope(topic, "ß".encode(), key="k", plain="a", unicode="日本", empty="", ce_id="7", ce_type="t"),
    ]
    with closing(place.publisher()) as publisher:
        assert published(publisher, sent) == [Accepted()] * len(sent)
    received = {message.id: message for message in place.receive(topic, len(sent))}
    for one in sent:
        other = received[one.id]
        assert (other.key, other.payload, other.content_type) == (one.key, one.payload, one.content_type)
        assert (other.topic, dict(other.headers)) == (one.topic, dict(one.headers))
        assert other.created_at == one.created_at
        assert other.attempt == 1


def test_a_large_batch_in_order(place: Place) -> None:
    """One answer for each message of a batch, and batch after batch keeps the order of what it was given."""
    topic = place.topic()
    numbers = [str(number).encode() for number in range(300)]
    with closing(place.publisher()) as publisher:
        for start in (0, 100, 200):
            batch = [envelope(topic, each, key=f"k{each!r}") for each in numbers[start : start + 100]]
            assert published(publisher, batch) == [Accepted()] * 100
    assert sorted(payloads(place.receive(topic, 300)), key=int) == numbers


def test_the_order_of_a_key(place: Place) -> None:
    """Messages of one key, sent one after the other as a relay does, arrive in that order."""
    topic = place.topic()
    numbers = [str(number).encode() for number in range(30)]
    with closing(place.publisher()) as publisher:
        for each in numbers:
            assert published(publisher, [envelope(topic, each, key="k")]) == [Accepted()]
    assert payloads(place.receive(topic, 30)) == numbers


def test_sends_to_one_topic_at_the_same_time(place: Place) -> None:
    """Without a key in common they do not disturb each other, also if one has a message that is refused."""
    topic = place.topic()

    def send(key: str) -> list[Outcome]:
        batches = [[envelope(topic, f"{key}{number}".encode(), key=key)] for number in range(10)]
        if key == "a":
            batches[5].append(replace(place.never_taken(topic), key="bad"))
        return [outcome for batch in batches for outcome in published(publisher, batch)]

    with closing(place.publisher()) as publisher:
        outcomes = together([partial(send, key) for key in "abc"])
    assert isinstance(outcomes[0].pop(6), Refused)
    assert outcomes == [[Accepted()] * 10] * 3
    taken = payloads(place.receive(topic, 30))
    for key in "abc":
        own = [each for each in taken if each[:1] == key.encode()]
        assert own == [f"{key}{number}".encode() for number in range(10)]


def test_a_batch_with_many_messages_of_a_key(place: Place) -> None:
    """A publisher that is `ordered` keeps their order. Behind one that is refused none of its key is taken;
    other keys go on."""
    topic = place.topic()
    batch = [envelope(topic, f"{key}{number}".encode(), key=key) for number in range(50) for key in "ab"]
    batch[60] = replace(place.never_taken(topic), key="a")
    with closing(place.publisher()) as publisher:
        if not getattr(publisher, "ordered", False):
            pytest.skip("it is not ordered")
        outcomes = published(publisher, batch)
    assert isinstance(outcomes[60], Refused)
    assert {type(outcome) for outcome in outcomes[62::2]} == {Unavailable}
    assert set(outcomes[:60:2] + outcomes[1::2]) == {Accepted()}
    taken = payloads(place.receive(topic, 80))
    assert [each for each in taken if each[:1] == b"a"] == [each.payload for each in batch[:60:2]]
    assert [each for each in taken if each[:1] == b"b"] == [each.payload for each in batch[1::2]]


def test_what_is_never_taken_is_refused(place: Place) -> None:
    """Only that message is refused, with a reason; those before and behind it are accepted and arrive."""
    topic = place.topic()
    batch = [envelope(topic, b"1"), place.never_taken(topic), envelope(topic, b"3")]
    with closing(place.publisher()) as publisher:
        first, second, third = published(publisher, batch)
        assert (first, third) == (Accepted(), Accepted())
        assert isinstance(second, Refused)
        assert second.reason
        assert published(publisher, [envelope(topic, b"4")]) == [Accepted()]
    assert sorted(payloads(place.receive(topic, 3))) == [b"1", b"3", b"4"]


def test_a_resend_has_the_same_id(place: Place) -> None:
    """Sent twice, it arrives twice under one id, by which an inbox knows it."""
    topic = place.topic()
    message = envelope(topic, b"again")
    with closing(place.publisher()) as publisher:
        for _ in range(2):
            assert published(publisher, [message]) == [Accepted()]
    assert [each.id for each in place.receive(topic, 2)] == [message.id] * 2


def test_a_broker_that_is_away(place: Place) -> None:
    """Unavailable, for nothing has been sent; within the time limit, and without a password in the reason."""
    publisher = place.away(timeout=4.0)
    if publisher is None:
        pytest.skip("there is no broker that could be away")
    with closing(publisher):
        batch = [envelope("t", key=f"k{number}") for number in range(50)]
        begun = time.monotonic()
        outcomes = published(publisher, batch)
        assert time.monotonic() - begun < 30.0  # its limit, and much patience with a busy machine
        assert {type(outcome) for outcome in outcomes} == {Unavailable}
        assert len(outcomes) == 50
        assert "secret" not in f"{outcomes} {publisher!r}"


def test_a_send_that_could_outlast_the_lease(place: Place) -> None:
    """The check refuses it, and names the setting."""
    with closing(place.publisher(timeout=10)) as publisher:
        check = getattr(publisher, "check", None)
        if check is None:
            pytest.skip("its handlers may take as long as they like: the relay renews its lease meanwhile")
        check(10.5)
        with pytest.raises(UnsafeBroker, match="timeout=10"):
            check(10)


def test_nothing_is_left_behind(place: Place) -> None:
    """After close() there is no thread more than before, and another send works again."""
    topic = place.topic()
    before = threading.active_count()
    publisher = place.publisher()
    for _ in range(2):
        assert published(publisher, [envelope(topic)]) == [Accepted()]
        with closing(publisher):
            pass
        deadline = time.monotonic() + 30
        while threading.active_count() > before and time.monotonic() < deadline:
            time.sleep(0.05)
        assert threading.active_count() <= before
