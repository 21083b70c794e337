"""Conformance tests of publishers: what arrives, and in which order."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import create_engine

from inbox.schema import metadata_for
from inbox_outbox_base.words.outgoing import ACCEPTED, Envelope, Outcome, Refused, Unavailable
from outbox._publishing.outbox import Outbox
from outbox._relaying.relay import Relay

from .place import PublisherPlace, payloads

_NAMES = ("id", "key", "payload", "topic", "headers", "type", "attempt", "created", "created_at", "a", "A")
"""Names of headers: an adapter may use the same names for its own fields, or write them in lower case."""


class Arriving(PublisherPlace):
    """Everything arrives as it was published, in order, and once."""

    def test_everything_arrives_as_it_was_published(self) -> None:
        """Id, key, payload, content type, headers and time are the consumer's, byte for byte."""
        topic = self.new_topic()
        long = {"x" * 100: "y" * 1_000}
        given = [
            self.envelope(topic, bytes(range(256)), "order-42"),
            self.envelope(topic, b"", "Ärger 日本 '\"\n"),
            self.envelope(topic, b"\xff\xfe"),
            self.envelope(topic, b"0", ""),
            self.envelope(topic, b"", r"\xdeadbeef"),
            self.envelope(topic, b"1", "k", plain="a", unicode="日本 é", empty="", blank=" ", quote="a\"b'c"),
            self.envelope(topic, b"2", "k" * 500, ce_id="7", ce_type="t", traceparent="00-ab-cd-01", **long),
            replace(self.envelope(topic, b"3", "k"), headers={name: f"the header {name}" for name in _NAMES}),
        ]
        with self.using() as publisher:
            for message in given:
                assert self.sent(publisher, [message]) == [ACCEPTED]
        arrived = {message.id: message for message in self.received(topic, len(given))}
        for message in given:
            assert message.id in arrived, f"{message} has not arrived under its id"
            other = arrived[message.id]
            assert (other.key, other.payload) == (message.key, message.payload)
            assert (other.topic, other.content_type) == (topic, message.content_type)
            assert dict(other.headers) == dict(message.headers)
            assert other.created_at == message.created_at
            assert other.attempt == 1

    def test_a_tombstone(self) -> None:
        """A message without a payload arrives as one, different from an empty one, or is refused."""
        topic = self.new_topic()
        tombstone, empty = self.envelope(topic, None, "k"), self.envelope(topic, b"", "l")
        with self.using() as publisher:
            (outcome,) = self.sent(publisher, [tombstone])
            assert self.sent(publisher, [empty]) == [ACCEPTED]
        assert outcome == ACCEPTED or isinstance(outcome, Refused)
        arrived = {each.id: each.payload for each in self.received(topic, 1 + (outcome == ACCEPTED))}
        assert arrived == {empty.id: b""} | ({tombstone.id: None} if outcome == ACCEPTED else {})

    def test_a_large_batch(self) -> None:
        """Each message of a batch has one outcome, and arrives once; an empty batch has none."""
        topic = self.new_topic()
        numbers = [b"%d" % number for number in range(300)]
        with self.using() as publisher:
            assert self.sent(publisher, []) == []
            for begin in (0, 100, 200):
                batch = [self.envelope(topic, each, f"key {each!r}") for each in numbers[begin : begin + 100]]
                assert self.sent(publisher, batch) == [ACCEPTED] * 100
        assert sorted(payloads(self.received(topic, 300)), key=int) == numbers

    def test_the_order_of_a_key(self) -> None:
        """Messages of one key, sent one after the other, arrive in that order."""
        topic = self.new_topic()
        numbers = [b"%d" % number for number in range(30)]
        with self.using() as publisher:
            for each in numbers:
                assert self.sent(publisher, [self.envelope(topic, each, "k")]) == [ACCEPTED]
        assert payloads(self.received(topic, 30)) == numbers

    def test_a_batch_with_many_messages_of_a_key(self) -> None:
        """A publisher that is `ordered` keeps the order of each key in a batch."""
        topic = self.new_topic()
        with self.using() as publisher:
            self._only_ordered(publisher)
            batch = [self.envelope(topic, b"%d" % number, f"{number % 3}") for number in range(150)]
            assert self.sent(publisher, batch) == [ACCEPTED] * 150
        arrived = self.received(topic, 150)
        for key in "012":
            assert [int(each.payload) for each in arrived if each.key == key] == list(range(int(key), 150, 3))

    def test_behind_a_failed_message_nothing_of_its_key_is_sent(self) -> None:
        """Of an `ordered` publisher's batch, nothing behind a refused message of a key reaches the server;
        other keys go on."""
        topic = self.new_topic()
        with self.using() as publisher:
            self._only_ordered(publisher)
            batch = [
                self.envelope(topic, b"%s%d" % (key.encode(), number), key)
                for number in range(20)
                for key in "ab"
            ]
            batch[24] = self._refused(topic, "a")
            outcomes = self.sent(publisher, batch)
        assert isinstance(outcomes[24], Refused)
        assert set(outcomes[:24:2] + outcomes[1::2]) == {ACCEPTED}
        assert ACCEPTED not in outcomes[26::2]
        assert {type(each) for each in outcomes[26::2]} == {Unavailable}, "they were certainly not sent"
        arrived = payloads(self.received(topic, 32))
        assert [each for each in arrived if each[:1] == b"a"] == [each.payload for each in batch[:24:2]]
        assert [each for each in arrived if each[:1] == b"b"] == [each.payload for each in batch[1::2]]

    def test_a_refused_message_harms_no_other(self) -> None:
        """Only that message is refused, with a reason; the messages before and after it arrive."""
        topic = self.new_topic()
        with self.using() as publisher:
            batch = [self.envelope(topic, b"1"), self.refused(topic), self.envelope(topic, b"3")]
            first, second, third = self.sent(publisher, batch)
            assert isinstance(second, Refused), second
            assert (first, third) == (ACCEPTED, ACCEPTED)
            assert self.sent(publisher, [self.envelope(topic, b"4")]) == [ACCEPTED]
        assert set(payloads(self.received(topic, 3))) == {b"1", b"3", b"4"}

    def test_sends_at_the_same_time(self) -> None:
        """Sends for one topic without a key in common, and for another topic, do not disturb each other."""
        topic, other = self.new_topic(), self.new_topic()

        def send(place: str, key: str) -> list[Outcome]:
            batches = [[self.envelope(place, b"%s%d" % (key.encode(), n), key)] for n in range(10)]
            return [outcome for batch in batches for outcome in self.sent(publisher, batch)]

        with self.using() as publisher:
            if not getattr(publisher, "concurrent", True):
                pytest.skip("concurrent = False: it gets one batch at a time")
            works = [partial(send, topic, key) for key in "abc"]
            outcomes = self.together(*works, partial(send, other, "d"))
        assert outcomes == [[ACCEPTED] * 10] * 4
        taken = payloads(self.received(topic, 30))
        for key in (b"a", b"b", b"c"):
            assert [each for each in taken if each[:1] == key] == [b"%s%d" % (key, n) for n in range(10)]
        assert payloads(self.received(other, 10)) == [b"d%d" % number for number in range(10)]

    def test_a_resend_has_the_same_id(self) -> None:
        """A message sent twice has the same id, by which an inbox knows it. A server may drop the second."""
        topic = self.new_topic()
        message, last = self.envelope(topic, b"again", "k"), self.envelope(topic, b"last", "k")
        with self.using() as publisher:
            for each in (message, message, last):
                assert self.sent(publisher, [each]) == [ACCEPTED]
        ids = [each.id for each in self.received(topic, 2)]
        assert set(ids) <= {message.id, last.id}
        assert message.id in ids

    def test_with_a_relay(self, tmp_path: Path) -> None:
        """Messages committed to an outbox arrive through a relay, once, in the order of each key."""
        topic, keys = self.new_topic(), "abc"
        engine = create_engine(f"sqlite:///{tmp_path / 'outbox.db'}")
        metadata_for("outbox").create_all(engine)
        with engine.begin() as connection:
            for number in range(10):
                for key in keys:
                    Outbox().publish(connection, topic, b"%d" % number, key)
        with self.using() as publisher:
            lease = max(30.0, 2 * float(getattr(publisher, "timeout", None) or 0))
            assert Relay(engine, publisher, lease=lease).run_once() == 30
        engine.dispose()
        arrived = self.received(topic, 30)
        for key in keys:
            assert [int(each.payload) for each in arrived if each.key == key] == list(range(10))

    def _only_ordered(self, publisher: object) -> None:
        if not getattr(publisher, "ordered", False):
            pytest.skip("it is not `ordered`: a batch has at most one message of each key")

    def _refused(self, topic: str, key: str) -> Envelope:
        given = self.refused(topic)
        fields = {name: getattr(given, name) for name in Envelope.__slots__}
        return Envelope(**{**fields, "key": key})
