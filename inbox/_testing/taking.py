"""Conformance tests of consumers: what is taken, retried and put away."""

import signal
import time
from collections.abc import Sequence
from contextlib import ExitStack

import pytest

from inbox_outbox_base.checks.backoff import Backoff
from inbox_outbox_base.errors.inbox import GiveUp, InvalidOption
from inbox_outbox_base.words.incoming import Delivery

from .child import child
from .handlers import Mode
from .place import ConsumerPlace
from .script import HandlerScript

_NOTICED = 0.5
"""Seconds in which a consumer notices that it cannot put a message away."""
_TAKEN_OVER = 1.0
"""Seconds in which a consumer takes over a message that the server believes to be lost."""
_ENOUGH = 3_200
"""After this many messages, each of two consumers must have got one."""


class Fault(Exception):
    """A handler's own error."""


class ConsumerTaking(ConsumerPlace):
    """Every message takes effect once, and is acknowledged when that is committed."""

    def test_every_message_takes_effect_once(self) -> None:
        """Messages that come twice are taken once, and all of them are acknowledged."""
        topic = self.new_topic()
        batch = [self.envelope(topic, b"%d" % number, f"key {number % 3}") for number in range(30)]
        script = HandlerScript()
        self.put(topic, batch)
        self.put(topic, batch)
        with self.consuming(topic, script):
            self.wait_until(lambda: len(script.deliveries) >= 60)
            self.wait_until(lambda: len(self.rows()) >= 30)
        assert sorted(self.payloads(), key=int) == [b"%d" % number for number in range(30)]
        self.nothing_is_left(topic)

    def test_what_a_handler_gets(self) -> None:
        """A handler gets the message's id, topic, key, payload, content type, headers and time, and the same
        in a later attempt; attempts are counted from 1."""
        topic = self.new_topic()
        given = [
            self.envelope(topic, bytes(range(256)), "Ärger 日本", plain="a", empty="", unicode="é"),
            self.envelope(topic, b""),
            self.envelope(topic, b"0", ""),
        ]
        failed = set[str]()

        def fail_once(message: Delivery) -> None:
            if message.id not in failed:
                failed.add(message.id)
                raise Fault("not yet")

        script = HandlerScript(fail_once)
        self.put(topic, given)
        with self.consuming(topic, script):
            self.wait_until(lambda: len(self.rows()) == len(given))
        for sent in given:
            seen = [each for each in script.runs if each.id == sent.id]
            assert len(seen) == 2
            assert seen[0].attempt == 1
            for each in seen:
                assert (each.topic, each.key, each.payload) == (topic, sent.key, sent.payload)
                assert (each.content_type, dict(each.headers)) == (sent.content_type, dict(sent.headers))
                assert each.created_at == sent.created_at

    @pytest.mark.parametrize("mode", ["exactly once", "status"])
    def test_a_failed_message_comes_again(self, mode: Mode) -> None:
        """A handler of either inbox mode that fails twice runs three times; its writes take effect once, and
        a later copy is acknowledged."""
        topic = self.new_topic()

        def fail_twice(message: Delivery) -> None:
            if message.payload == b"bad" and script.ran(b"bad") < 3:
                raise Fault("not yet")

        script = HandlerScript(fail_twice)
        bad = self.envelope(topic, b"bad", "k")
        self.put(topic, [bad, self.envelope(topic, b"good", "l")])
        with self.consuming(topic, script, mode=mode):
            self.wait_until(lambda: {*self.payloads()} == {b"bad", b"good"})
            self.put(topic, [bad])
            self.wait_until(lambda: len(script.deliveries) >= 5)
        assert script.ran(b"bad") == 3
        assert sorted(self.payloads()) == [b"bad", b"good"]
        self.nothing_is_left(topic)

    def test_a_retry_waits(self) -> None:
        """A failed message does not run again before its delay has passed. Messages of other keys go on
        meanwhile, of some keys at least."""
        topic = self.new_topic()
        others = [f"key {number}" for number in range(16)]

        def fail(message: Delivery) -> None:
            if message.payload == b"bad":
                raise Fault("once")

        script = HandlerScript(fail)
        self.put(topic, [self.envelope(topic, b"bad", "bad")])
        runner, running = self.started(topic, script, backoff=Backoff(first=3_600))
        try:
            self.wait_until(lambda: script.ran(b"bad"))
            for turn in range(3):
                self.put(topic, [self.envelope(topic, b"%d" % turn, key) for key in others])
                self.wait_until(lambda: b"%d" % turn in self.payloads())  # noqa: B023 - ends within the turn
        finally:
            runner.stop()
        running.result(self.patience)
        assert script.ran(b"bad") == 1

    @pytest.mark.parametrize("mode", ["exactly once", "status"])
    def test_a_poison_message(self, mode: Mode) -> None:
        """A message that its handler gives up is put away whole, with the reason. Earlier and later messages,
        also of its key, take effect."""
        topic = self.new_topic()

        def give_up(message: Delivery) -> None:
            if message.payload == b"\xffpoison":
                raise GiveUp("no way")

        script = HandlerScript(give_up)
        poison = self.envelope(topic, b"\xffpoison", "k", colour="blue")
        around = [self.envelope(topic, name, "k") for name in (b"before", b"behind")]
        self.put(topic, [around[0], poison, around[1]])
        self.put(topic, [self.envelope(topic, b"other", "l")])
        with self.consuming(topic, script, mode=mode):
            self.wait_until(lambda: {*self.payloads()} == {b"before", b"behind", b"other"})
            self.wait_until(lambda: self.dead_letters(topic))
        ((letter, reason),) = self.dead_letters(topic)
        assert (letter.id, letter.key, letter.payload) == (poison.id, poison.key, poison.payload)
        assert letter.headers.items() >= poison.headers.items()
        assert "no way" in reason
        assert script.ran(b"\xffpoison") == 1
        self.nothing_is_left(topic)

    def test_a_dead_letter_that_cannot_be_stored(self) -> None:
        """A message that cannot be put away is not acknowledged, and is put away once that is possible."""
        topic = self.new_topic()

        def give_up(message: Delivery) -> None:
            if message.payload == b"poison":
                raise GiveUp("no way")

        script = HandlerScript(give_up)
        with self.consuming(topic, script):
            self.put(topic, [self.envelope(topic, b"good", "k")])
            self.wait_until(lambda: self.payloads() == [b"good"])
            self.refuse_dead_letters(topic)
            self.put(topic, [self.envelope(topic, b"poison", "k")])
            self.wait_until(lambda: script.ran(b"poison"))
            time.sleep(_NOTICED)
            self.take_dead_letters(topic)
            self.wait_until(lambda: self.dead_letters(topic))
        ((letter, reason),) = self.dead_letters(topic)
        assert letter.payload == b"poison"
        assert "no way" in reason

    def test_too_many_failures(self) -> None:
        """A message that has failed `max_attempts` times is put away with its error, and blocks no other."""
        topic = self.new_topic()

        def fail(message: Delivery) -> None:
            if message.payload == b"bad":
                raise Fault("every time")

        script = HandlerScript(fail)
        self.put(topic, [self.envelope(topic, name, "k") for name in (b"bad", b"good")])
        with self.consuming(topic, script, max_attempts=3):
            self.wait_until(lambda: self.payloads() == [b"good"] and self.dead_letters(topic))
        assert script.ran(b"bad") == 3
        ((letter, reason),) = self.dead_letters(topic)
        assert letter.payload == b"bad"
        assert "every time" in reason

    def test_the_order_of_a_key(self) -> None:
        """However many run at the same time, messages of one key run one after the other, in their order."""
        topic = self.new_topic()
        batch = [self.envelope(topic, b"%d" % number, f"{number % 3}") for number in range(60)]
        script = HandlerScript()
        self.put(topic, batch)
        with self.consuming(topic, script, concurrency=4):
            self.wait_until(lambda: len(self.rows()) >= 60)
        assert not script.overlaps
        for key in "012":
            numbers = [int(payload) for each, payload in self.rows() if each == key]
            assert numbers == list(range(int(key), 60, 3))

    def test_a_handler_that_runs_long(self) -> None:
        """While a handler runs, no other consumer of the group gets its message, even after the time in which
        the server redelivers messages of a lost consumer."""
        topic, lost = self.new_topic(), self.new_topic()
        scripts = HandlerScript(), HandlerScript()
        for script in scripts:
            script.hold(b"long")

        def began() -> list[Delivery]:
            return [each for script in scripts for each in script.deliveries if each.payload == b"long"]

        # In status mode, a running handler has no open transaction: others can write, even on SQLite.
        with ExitStack() as consumers:
            for script in scripts:
                consumers.enter_context(self.consuming(topic, script, mode="status", concurrency=2))
            self._put_until_both_take(topic, scripts)
            self.put(topic, [self.envelope(topic, b"long", "long")])
            self.wait_until(began)
            self._lose_one(lost)
            time.sleep(_TAKEN_OVER)
            assert len(began()) == 1, "another consumer got a message whose handler still ran"
            for script in scripts:
                script.release()
            self.wait_until(lambda: b"long" in self.payloads())
        assert len(began()) == 1
        self.nothing_is_left(topic)

    def _lose_one(self, topic: str) -> None:
        """Return once the server has delivered the message of a killed consumer to another one."""
        self.put(topic, [self.envelope(topic, b"lost", "k")])
        given = type(self), self.address(), topic, self.url
        with child(*given, "before commit", self.patience, "status") as process:
            assert process.exit_code() == -signal.SIGKILL
        script = HandlerScript()
        with self.consuming(topic, script, mode="status"):
            self.wait_until(lambda: script.deliveries)

    def _put_until_both_take(self, topic: str, scripts: Sequence[HandlerScript]) -> None:
        """Put messages until each consumer has got one: only then have both joined the group."""
        sent = 0
        while not all(script.deliveries for script in scripts):
            self.put(topic, [self.envelope(topic, b"%d" % key, f"key {key}") for key in range(16)])
            sent += 16
            self.wait_until(lambda: len(self.rows()) >= sent)  # noqa: B023 - ends within the turn
            assert sent < _ENOUGH, "one of two consumers of the group gets no message"

    @pytest.mark.parametrize("mistake", ["another result", "SystemExit"])
    def test_a_handler_that_is_none(self, mistake: str) -> None:
        """A handler that does not return an `Outcome`, or ends the program, ends the consumer with an error.
        The message is not acknowledged."""
        topic = self.new_topic()
        error: type[BaseException] = InvalidOption if mistake == "another result" else SystemExit

        def handle(_: Delivery) -> str:
            if mistake == "SystemExit":
                raise SystemExit(mistake)
            return "done"

        self.put(topic, [self.envelope(topic, b"a", "k")])
        _, running = self.started(topic, own=handle)
        with pytest.raises(error):
            running.result(self.patience)
        with self.consuming(topic):
            self.wait_until(lambda: self.payloads() == [b"a"])

    def test_strange_messages(self) -> None:
        """Messages that no outbox has sent stop nothing: one that comes after them is taken."""
        topic = self.new_topic()
        self.put_strange(topic)
        self.put(topic, [self.envelope(topic, b"good", "k")])
        with self.consuming(topic):
            self.wait_until(lambda: b"good" in self.payloads())
            taken = 0
            while taken < (taken := len(self.rows())):  # a broker may deliver the strange ones after it
                time.sleep(1)
        self.nothing_is_left(topic)
