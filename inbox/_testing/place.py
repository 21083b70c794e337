"""What the conformance tests of consumers work with."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar
from uuid import uuid4

import pytest
from sqlalchemy.engine import URL, Engine, make_url

from inbox._listening.outcome import Outcome
from inbox_outbox_base.brokers.conformance import Running, Suite
from inbox_outbox_base.words.incoming import Delivery, Verdict
from inbox_outbox_base.words.outgoing import Envelope

from .handlers import SOON, Mode, engine_on, make_tables, taken
from .runner import Runner
from .script import HandlerScript


class ConsumerPlace(Suite):
    """How to reach a consumer and its server: what a subclass defines."""

    is_async: ClassVar[bool] = False
    """Whether `run` is awaited, and handlers are asynchronous."""
    secret: ClassVar[str] = "secret"  # noqa: S105 - opens nothing
    """The password that `unreachable` uses: no text may contain it."""

    redelivered_after: ClassVar[float] = 0.0
    """Seconds after which the server redelivers the unacknowledged messages of a consumer that is gone."""
    _at_work: Running[None] | None = None

    def address(self) -> Any:
        """What `consumer` needs to find the server; it is pickled for another process."""
        raise NotImplementedError

    @staticmethod
    def consumer(address: Any, topic: str, handler: Callable[[Delivery], Any], **options: Any) -> Any:
        """A consumer that takes the messages of a topic, always as the same group or subscriber. The options
        are some of `max_attempts`, `backoff`, `grace` and `concurrency`."""
        raise NotImplementedError

    def new_topic(self) -> str:
        """The name of a new, empty topic that takes messages, ready for a consumer."""
        raise NotImplementedError

    def put(self, topic: str, messages: Sequence[Envelope]) -> None:
        """Write messages to the topic, in this order: as your publisher does."""
        raise NotImplementedError

    def dead_letters(self, topic: str) -> Sequence[tuple[Delivery, str]]:
        """Optional: the dead letters of this topic, each with its reason."""
        self._lacks("dead_letters")

    def refuse_dead_letters(self, topic: str) -> None:
        """Optional: from now on the server cannot store dead letters of this topic."""
        self._lacks("refuse_dead_letters and take_dead_letters")

    def take_dead_letters(self, topic: str) -> None:
        """Optional: from now on the server can store dead letters again."""
        self._lacks("refuse_dead_letters and take_dead_letters")

    def put_strange(self, topic: str) -> None:
        """Optional: write messages that other clients can write, but your publisher never does."""
        self._lacks("put_strange")

    def unreachable(self, handler: Callable[[Delivery], Any]) -> Any:
        """Optional: a consumer whose server is not there, with the password `secret`."""
        self._lacks("unreachable")

    def database(self, folder: Path) -> URL:
        """Optional: an empty database; otherwise SQLite in this folder."""
        # Writers wait for one another, at most 60 seconds.
        return make_url(f"sqlite:///{folder / 'suite.db'}?timeout=60")

    @pytest.fixture(autouse=True)
    def _folder_of_the_database(self, tmp_path: Path) -> Iterator[None]:
        self.begin(tmp_path)
        yield
        self.end()

    def begin(self, folder: Path) -> None:
        """Prepare a test; pytest calls it."""
        self.folder = folder
        self._runners: list[Runner] = []

    def end(self) -> None:
        """Close what a test has opened; pytest calls it."""
        for runner in self._runners:
            runner.close()
        if "engine" in vars(self):
            self.engine.dispose()

    @cached_property
    def url(self) -> URL:
        """The database, with its tables: made when a test first needs it."""
        url = self.database(self.folder)
        make_tables(url)
        return url

    @cached_property
    def engine(self) -> Engine:
        """The test's own engine."""
        return engine_on(self.url)

    def rows(self) -> list[tuple[str | None, bytes]]:
        """Key and payload of each business row, in the order in which they were written."""
        return taken(self.engine)

    def payloads(self) -> list[bytes]:
        """The payloads of the business rows."""
        return [payload for _, payload in self.rows()]

    @contextmanager
    def consuming(
        self,
        topic: str,
        script: HandlerScript | None = None,
        *,
        mode: Mode = "exactly once",
        own: Callable[[Delivery], Any] | None = None,
        around: Callable[[Any], Callable[[Delivery], Any]] | None = None,
        **options: Any,
    ) -> Iterator[Runner]:
        """A consumer that runs until the end of the block, where the error of `run` is raised."""
        runner, running = self.started(topic, script, mode=mode, own=own, around=around, **options)
        self._at_work = running
        try:
            yield runner
        finally:
            self._at_work = None
            runner.stop()
        running.result(self.patience)

    def wait_until(self, condition: Callable[[], object]) -> None:
        """See `Suite.wait_until`. Also fails if the consumer has ended; a failure names the business rows."""

        def holds() -> bool:
            if condition():
                return True
            if self._at_work is not None and self._at_work.is_over:
                self._at_work.result(self.patience)  # raises its error
                pytest.fail("the consumer has ended")
            return False

        try:
            super().wait_until(holds)
        except AssertionError as error:
            error.add_note(f"Payloads of the business rows so far: {self.payloads()[:50]}")
            raise

    def started(
        self,
        topic: str,
        script: HandlerScript | None = None,
        *,
        mode: Mode = "exactly once",
        own: Callable[[Delivery], Any] | None = None,
        around: Callable[[Any], Callable[[Delivery], Any]] | None = None,
        **options: Any,
    ) -> tuple[Runner, Running[None]]:
        """A consumer that runs until the test stops it."""
        given = {"backoff": SOON, **options}
        runner = Runner(
            lambda handle: self.consumer(self.address(), topic, handle, **given),
            is_async=self.is_async,
            url=self.url,
            script=script or HandlerScript(),
            mode=mode,
            own=own,
            around=around,
        )
        self._runners.append(runner)
        return runner, runner.start()

    def nothing_is_left(self, topic: str) -> None:
        """Check that everything was acknowledged: another consumer gets a new message, and nothing else."""
        deliveries: list[bytes] = []

        def handle(message: Delivery) -> Outcome:
            deliveries.append(message.payload)
            return Outcome(Verdict.NEW)

        with self.consuming(topic, own=handle):
            self.put(topic, [self.envelope(topic, b"the last one", "last")])
            self.wait_until(lambda: b"the last one" in deliveries)
            time.sleep(self.redelivered_after)  # a message that was not acknowledged would come
        assert {*deliveries} == {b"the last one"}, "some messages were not acknowledged"

    @staticmethod
    def envelope(topic: str, payload: bytes = b"x", key: str | None = None, **headers: str) -> Envelope:
        """A message as it leaves an outbox."""
        kind = "application/octet-stream"
        return Envelope(str(uuid4()), topic, key, payload, kind, headers, 1, datetime.now(UTC))
