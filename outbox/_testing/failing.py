"""Conformance tests of publishers: settings, and servers that fail."""

import os
import threading
import time
import warnings
from collections import defaultdict
from typing import Any, ClassVar

import pytest

from inbox_outbox_base.brokers.conformance import Running
from inbox_outbox_base.errors.outbox import UnsafeBroker
from inbox_outbox_base.words.outgoing import ACCEPTED, Envelope, Outcome, Unavailable, Unknown
from outbox._publishers.publisher import Publisher

from .place import PublisherPlace
from .resending import Resending, certainly_not_sent

_NOT_ACCEPTED = 3
"""The exit code of a forked process whose message was not accepted."""


class PublisherFailing(PublisherPlace):
    """Whatever fails, no outcome says more than is certain."""

    kills: ClassVar[int] = 2
    """How often `test_a_killed_server` kills the server."""

    def test_it_is_a_publisher(self) -> None:
        """It has what a relay needs; the time limit, if it has one, is positive."""
        with self.using() as publisher:
            assert isinstance(publisher, Publisher)
            for name in ("ordered", "concurrent"):
                assert isinstance(getattr(publisher, name, False), bool)
            timeout = getattr(publisher, "timeout", None)
            assert timeout is None or timeout > 0

    def test_a_send_that_could_outlast_the_lease(self) -> None:
        """`check` accepts a lease that is longer than the time limit, and names `timeout` for one that is
        not."""
        with self.using() as publisher:
            limit = self._timeout(publisher)
            if not hasattr(publisher, "check"):
                pytest.skip("it has no check(lease)")
            publisher.check(2 * limit)
            with pytest.raises(UnsafeBroker, match="timeout"):
                publisher.check(limit)

    def test_a_missing_topic(self) -> None:
        """No message to it is called accepted, or refused, since the topic may exist later; other topics go
        on."""
        topic, missing = self.new_topic(), self.missing_topic()
        with self.using() as publisher:
            outcomes = self.sent(publisher, [self.envelope(missing, b"1", "a"), self.envelope(missing, b"2")])
            assert {type(each) for each in outcomes} <= {Unavailable, Unknown}, outcomes
            assert self.sent(publisher, [self.envelope(topic)]) == [ACCEPTED]
        assert len(self.received(topic, 1)) == 1

    def test_an_unreachable_server(self) -> None:
        """Every message is unavailable, so that an outage makes no dead letters, however long it lasts. No
        text contains the password, and `check` does not raise."""
        with self.using(self.unreachable()) as publisher:
            self._checks_without_a_server(publisher)
            batch = [self.envelope("topic", key=f"{number}") for number in range(50)]
            outcomes = self._sent_in_time(publisher, batch)
            assert {type(each) for each in outcomes} == {Unavailable}, outcomes[0]
            assert self.secret not in f"{outcomes} {publisher!r}"

    def test_close(self) -> None:
        """After `close` no thread is left. Closing again does nothing, and another send works."""
        topic = self.new_topic()
        with self.using() as publisher:
            if not hasattr(publisher, "close"):
                pytest.skip("it has no close()")
            before = threading.active_count()
            publisher.close()
            for number in range(2):
                assert self.sent(publisher, [self.envelope(topic, b"%d" % number, "k")]) == [ACCEPTED]
                publisher.close()
                publisher.close()
                self.wait_until(lambda: threading.active_count() <= before)
        assert [each.payload for each in self.received(topic, 2)] == [b"0", b"1"]

    def test_begin_no_more(self) -> None:
        """`begin_no_more` returns immediately, and a later send works as usual."""
        topic = self.new_topic()
        with self.using() as publisher:
            if not hasattr(publisher, "begin_no_more"):
                pytest.skip("it has no begin_no_more()")
            publisher.begin_no_more()
            assert self.sent(publisher, [self.envelope(topic)]) == [ACCEPTED]
        assert len(self.received(topic, 1)) == 1

    def test_a_fork(self) -> None:
        """A forked process sends, or says that it cannot. It does not hang, does not disturb its parent, and
        every message that it calls accepted arrives."""
        topic = self.new_topic()
        with self.using() as publisher:
            if hasattr(publisher, "end") or not hasattr(os, "fork"):
                pytest.skip("an asynchronous publisher belongs to one event loop")
            assert self.sent(publisher, [self.envelope(topic, b"before", "a")]) == [ACCEPTED]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # there are other threads
                child = os.fork()
            if child == 0:
                self._send_and_exit(publisher, topic)
            code = self._exit_code(child)
            assert code in (0, _NOT_ACCEPTED)
            assert self.sent(publisher, [self.envelope(topic, b"after", "c")]) == [ACCEPTED]
        expected = {b"before", b"after"} | ({b"child"} if code == 0 else set())
        assert {each.payload for each in self.received(topic, len(expected))} >= expected

    def test_a_frozen_server(self) -> None:
        """`send` returns although nothing answers. Messages that it calls unavailable never arrive, and once
        the server goes on, so does the publisher."""
        topic, never = self.new_topic(), set[str]()
        with self.using() as publisher:
            self.accept_at_last(publisher, self.envelope(topic, b"before", "k"))
            self.freeze()
            try:
                for _ in range(3):
                    # A time limit for each message, and not for the batch, lasts too long.
                    batch = [self.envelope(topic, b"frozen", f"{number}") for number in range(100)]
                    outcomes = self._sent_in_time(publisher, batch)
                    assert {type(each) for each in outcomes} <= {Unavailable, Unknown}
                    never |= certainly_not_sent(batch, outcomes)
            finally:
                self.thaw()
            self._takes_no_earlier_answer(publisher)
            last = self.envelope(topic, b"last", "k")
            self.accept_at_last(publisher, last)
        arrived = {each.id for each in self.received(topic, 2)}
        assert last.id in arrived
        assert not never & arrived, "messages that were called unavailable have arrived"

    def test_a_killed_server(self) -> None:
        """Every message called accepted before, during and after a crash of the server is there, in the order
        of its key; no message called unavailable is."""
        topic = self.new_topic()
        resending = Resending(
            lambda key: self.envelope(topic, b"x", key), [f"key {number}" for number in range(6)]
        )
        with self.using() as publisher:
            self.accept_at_last(publisher, self.envelope(topic, b"first"))
            sending = Running(lambda: resending.run(lambda batch: self.sent(publisher, batch)))
            try:
                for _ in range(self.kills):
                    self._until_more(resending, sending)
                    self.kill()
                    self.start()
                self._until_more(resending, sending)
            finally:
                resending.stop()
                sending.result(self._timeout(publisher) + self.patience, "send")
        arrived = defaultdict[str | None, list[str]](list)
        for each in self.received(topic, 1 + sum(map(len, resending.accepted.values()))):
            if each.id not in arrived[each.key]:
                arrived[each.key].append(each.id)
        for key, ids in resending.accepted.items():
            there = [each for each in arrived[key] if each in set(ids)]
            assert there == ids, f"of {len(ids)} messages that were called accepted, {len(there)} are there"
        known = {each for ids in arrived.values() for each in ids}
        assert not resending.never & known, "messages that were called unavailable have arrived"

    def _takes_no_earlier_answer(self, publisher: Any) -> None:
        if type(self).missing_topic is not PublisherPlace.missing_topic:
            outcomes = self.sent(publisher, [self.envelope(self.missing_topic())])
            assert ACCEPTED not in outcomes, "the answer to an earlier message is taken for this one's"

    def _until_more(self, resending: Resending, sending: Running[None]) -> None:
        enough = resending.count + 20
        self.wait_until(lambda: resending.count > enough or sending.is_over)

    def _timeout(self, publisher: object) -> float:
        limit = getattr(publisher, "timeout", None)
        if limit is None:
            pytest.skip("it has no `timeout`")
        return float(limit)

    def _sent_in_time(self, publisher: Any, batch: list[Envelope]) -> list[Outcome]:
        """The outcomes; fails if they come after the time limit and an addition for busy machines."""
        limit = self._timeout(publisher)
        running = Running(lambda: self.sent(publisher, batch))
        return running.result(limit + self.patience, f"the send of a publisher with timeout={limit:g}")

    def _checks_without_a_server(self, publisher: Any) -> None:
        if not hasattr(publisher, "check"):
            return
        try:
            publisher.check(2 * self._timeout(publisher))
        except UnsafeBroker as error:
            pytest.fail(f"`check` raises because the server does not answer: {error}")

    def _send_and_exit(self, publisher: Publisher, topic: str) -> None:
        code = _NOT_ACCEPTED
        try:
            if self.sent(publisher, [self.envelope(topic, b"child", "b")]) == [ACCEPTED]:
                code = 0
        finally:
            os._exit(code)

    def _exit_code(self, child: int) -> int:
        deadline = time.monotonic() + self.patience
        while time.monotonic() < deadline:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.02)
        os.kill(child, 9)
        os.waitpid(child, 0)
        pytest.fail("the send of a forked process hangs")
