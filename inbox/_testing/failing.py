"""Conformance tests of consumers: stops, crashes and outages."""

import signal
import threading
import time
from typing import Any

import pytest
from sqlalchemy.engine import make_url

from inbox_outbox_base.brokers.conformance import Running
from inbox_outbox_base.checks.backoff import Backoff
from inbox_outbox_base.words.incoming import Delivery

from .child import Point, child
from .handlers import async_engine_on, async_handler, engine_on, handler
from .place import ConsumerPlace
from .script import HandlerScript

_NOTICED = 0.5
"""Seconds in which a consumer notices that its server is gone."""
_NOBODY = make_url("postgresql+psycopg://nobody@127.0.0.1:1/none")


class ConsumerFailing(ConsumerPlace):
    """Whatever stops or fails, no message is lost, and each takes effect once."""

    @pytest.mark.parametrize("point", ["before commit", "after commit"])
    def test_a_killed_consumer(self, point: Point) -> None:
        """After SIGKILL before the commit, or between commit and acknowledgement, another consumer takes the
        messages that were not taken, and every message took effect once."""
        topic = self.new_topic()
        names = [b"%d" % number for number in range(6)]
        self.put(topic, [self.envelope(topic, name, f"key {name!r}") for name in names])
        with child(type(self), self.address(), topic, self.url, point, self.patience) as process:
            assert process.exit_code() == -signal.SIGKILL
        # Other handlers may have committed as well.
        assert bool(self.rows()) == (point == "after commit")
        script = HandlerScript()
        with self.consuming(topic, script):
            self.wait_until(lambda: len(self.rows()) >= 6)
            self.wait_until(lambda: len({each.payload for each in script.deliveries}) == 6)
        assert sorted(self.payloads()) == names
        self.nothing_is_left(topic)

    def test_a_consumer_that_is_killed_under_load(self) -> None:
        """SIGKILL at any moment: in the end every message took effect once."""
        topic, names = self.new_topic(), self._load()
        self.put(topic, [self.envelope(topic, name, f"key {name[-1:]!r}") for name in names])
        with self._child(topic) as process:
            process.first()
            self.wait_until(lambda: len(self.rows()) > 5)
        with self.consuming(topic):
            self.wait_until(lambda: len(self.rows()) >= len(names))
        assert sorted(self.payloads()) == names

    def test_sigterm(self) -> None:
        """A consumer in the main thread of a process ends after SIGTERM, with exit code 0. No message is
        lost, and those that it has taken do not come again."""
        topic, names = self.new_topic(), self._load()
        self.put(topic, [self.envelope(topic, name, f"key {name[-1:]!r}") for name in names])
        with self._child(topic) as process:
            process.first()
            process.signal(signal.SIGTERM)
            assert process.exit_code() == 0
        before = {*self.payloads()}
        assert len(before) > 0
        script = HandlerScript()
        with self.consuming(topic, script):
            self.wait_until(lambda: len(self.rows()) >= len(names))
        assert sorted(self.payloads()) == names
        assert not before & {each.payload for each in script.deliveries}

    def test_a_stop_gives_back(self) -> None:
        """After `stop` the running message ends and is acknowledged. The next consumer soon takes the
        messages that have not begun, in order."""
        topic, names, script = self.new_topic(), self._load(), HandlerScript()
        script.hold(names[0])
        self.put(topic, [self.envelope(topic, name, "k") for name in names])
        runner, running = self.started(topic, script)
        try:
            self.wait_until(lambda: script.ran(names[0]))
            runner.stop()
        finally:
            script.release()
        running.result(self.patience)
        done = len(self.payloads())
        assert self.payloads() == names[:done]
        assert 0 < done < len(names)
        script = HandlerScript()
        with self.consuming(topic, script):
            self.wait_until(lambda: len(self.rows()) >= len(names))
        assert self.payloads() == names
        assert script.deliveries[0].payload == names[done]

    def test_a_stop_while_a_message_waits(self) -> None:
        """A failed message that waits for its next attempt is not acknowledged together with later ones: the
        next consumer takes it."""
        topic = self.new_topic()

        def fail(message: Delivery) -> None:
            if message.payload == b"bad":
                raise ValueError("not yet")

        script = HandlerScript(fail)
        self.put(topic, [self.envelope(topic, b"bad", "bad")])
        runner, running = self.started(topic, script, backoff=Backoff(first=2))
        try:
            self.wait_until(lambda: script.ran(b"bad"))
            self.put(topic, [self.envelope(topic, b"good", f"key {number}") for number in range(16)])
            self.wait_until(lambda: b"good" in self.payloads())
        finally:
            runner.stop()
        running.result(self.patience)
        with self.consuming(topic):
            self.wait_until(lambda: b"bad" in self.payloads())

    def test_a_stop_within_the_grace(self) -> None:
        """A handler that does not end delays the consumer's end only for `grace`; its message is not
        acknowledged, and takes effect once."""
        topic, script = self.new_topic(), HandlerScript()
        script.hold(b"long")
        self.put(topic, [self.envelope(topic, b"long", "k")])
        runner, running = self.started(topic, script, grace=1)
        try:
            self.wait_until(lambda: script.ran(b"long"))
            runner.stop()
            running.result(self.patience)
        finally:
            script.release()
        after = HandlerScript()
        with self.consuming(topic, after):
            self.wait_until(lambda: after.deliveries and script.is_idle)
            self.wait_until(lambda: self.payloads() == [b"long"])
        self.nothing_is_left(topic)

    def test_the_database_is_away(self) -> None:
        """While the inbox cannot reach its database, a message is retried, however long that takes. It does
        not become a dead letter, and takes effect afterwards, even if its handler then fails once."""
        topic, is_away, tries = self.new_topic(), threading.Event(), list[Delivery]()
        is_away.set()
        engine: Any = (async_engine_on if self.is_async else engine_on)(_NOBODY)
        make: Any = async_handler if self.is_async else handler
        without = make(engine, HandlerScript(), "exactly once")

        def fail_once(message: Delivery) -> None:
            if script.ran(message.payload) == 1:
                raise ValueError("the first failure of two that make a dead letter")

        script = HandlerScript(fail_once)

        def around(there: Any) -> Any:
            def handle(message: Delivery) -> Any:
                if is_away.is_set():
                    tries.append(message)
                    return without(message)
                return there(message)

            return handle

        self.put(topic, [self.envelope(topic, b"a", "k")])
        with self.consuming(topic, script, around=around, max_attempts=2):
            self.wait_until(lambda: len(tries) > 4)
            is_away.clear()
            self.wait_until(lambda: self.payloads() == [b"a"])
        self.nothing_is_left(topic)
        if type(self).dead_letters is not ConsumerPlace.dead_letters:
            assert not self.dead_letters(topic)

    def test_a_server_that_restarts(self) -> None:
        """The consumer goes on by itself after a crash of the server, and every message takes effect once."""
        topic = self.new_topic()
        names = [b"%03d" % number for number in range(40)]
        batch = [self.envelope(topic, name, f"key {name[-1:]!r}") for name in names]
        self.put(topic, batch[:20])
        script = HandlerScript()
        script.hold(b"007")
        with self.consuming(topic, script):
            self.wait_until(lambda: script.ran(b"007"))
            self.kill()
            script.release()
            self.wait_until(lambda: script.is_idle)
            time.sleep(_NOTICED)
            self.start()
            self.put(topic, batch[20:])
            self.wait_until(lambda: len(self.rows()) >= 40)
        assert sorted(self.payloads()) == names

    def test_an_unreachable_server(self, caplog: pytest.LogCaptureFixture) -> None:
        """A consumer whose server is not there raises an error, or runs until it is stopped. Neither the
        error nor the log nor the consumer's repr contains the password."""
        consumer = self.unreachable(_awaited if self.is_async else _refuse)

        def run() -> None:
            if self.is_async:
                import asyncio

                asyncio.run(consumer.run())
            else:
                consumer.run()

        running, text = Running(run), repr(consumer)
        threading.Event().wait(1)
        consumer.stop()
        try:
            running.result(self.patience)
        except AssertionError:
            raise
        except Exception as error:  # noqa: BLE001 - whichever it is
            text += f"{error!r} {error}"
        assert self.secret not in text + caplog.text

    def _load(self) -> list[bytes]:
        return [b"%03d" % number for number in range(200)]

    def _child(self, topic: str) -> Any:
        return child(type(self), self.address(), topic, self.url, "never", self.patience)


def _refuse(_: Delivery) -> Any:
    raise AssertionError("nothing can be delivered")


async def _awaited(message: Delivery) -> Any:
    _refuse(message)
