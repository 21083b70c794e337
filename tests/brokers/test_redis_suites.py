"""The adapters of the guide's reader pass the conformance suites; broken ones do not."""

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar
from uuid import uuid4

import pytest
import redis

from examples.embedded_postgres import free_port
from inbox import Action, Decision, Delivery
from inbox.errors import InvalidOption
from inbox.testing import ConsumerSuite
from outbox import Accepted, Envelope, Outcome, Unavailable, Unknown
from outbox.testing import PublisherSuite
from tests.servers.redis import LocalRedis
from tests.support.answers import published
from tests.support.redis_consumer import RedisStreamsConsumer
from tests.support.redis_streams import LARGEST, RedisStreamsPublisher, client_of, delivery_of


class RedisServer:
    """The server, and the methods with which the suites reach it."""

    @pytest.fixture(autouse=True)
    def _server(self, private_redis: LocalRedis) -> Iterator[None]:
        self.use(private_redis)
        yield
        self.client.close()

    def use(self, server: LocalRedis) -> None:
        self.server, self.client = server, client_of(server.url, 30)

    def new_topic(self) -> str:
        name = f"stream-{uuid4()}"
        self.client.xgroup_create(name, "made", mkstream=True)
        return name

    def freeze(self) -> None:
        self.server.freeze()

    def thaw(self) -> None:
        self.server.thaw()

    def kill(self) -> None:
        self.server.kill()

    def start(self) -> None:
        self.server.start()


class TestRedisStreamsPublisher(RedisServer, PublisherSuite):
    """The reader's publisher."""

    kind: type[RedisStreamsPublisher] = RedisStreamsPublisher

    def publisher(self) -> RedisStreamsPublisher:
        return self.kind(self.server.url, timeout=2)

    def received(self, topic: str, count: int) -> Sequence[Delivery]:
        return [delivery_of(topic, fields) for _, fields in self.client.xrange(topic)]

    def refused(self, topic: str) -> Envelope:
        return self.envelope(topic, bytes(LARGEST + 1))

    def missing_topic(self) -> str:
        return f"missing-{uuid4()}"

    def unreachable(self) -> RedisStreamsPublisher:
        return self.kind(f"redis://:{self.secret}@127.0.0.1:{free_port()}", timeout=2)


@pytest.mark.long
class TestRedisStreamsConsumer(RedisServer, ConsumerSuite):
    """The reader's consumer, on SQLite."""

    redelivered_after = 2.2

    kind: ClassVar[Any] = RedisStreamsConsumer

    def address(self) -> str:
        return self.server.url

    @classmethod
    def consumer(cls, address: str, topic: str, handler: Any, **options: Any) -> Any:
        return cls.kind(address, topic, handler, **options)

    def new_topic(self) -> str:
        topic = super().new_topic()
        self.client.xgroup_create(topic, "suite", id="0")
        return topic

    def put(self, topic: str, messages: Sequence[Envelope]) -> None:
        publisher = RedisStreamsPublisher(self.server.url)
        assert published(publisher, messages) == [Accepted()] * len(messages)
        publisher.close()

    def dead_letters(self, topic: str) -> list[tuple[bytes, str]]:
        found = self.client.xrange(f"{topic}.dead")
        return [(fields[b"payload"], fields[b"reason"].decode()) for _, fields in found]

    def put_strange(self, topic: str) -> None:
        self.client.xadd(topic, {b"\xff": b"\xfe"})
        self.client.xadd(topic, {"id": "1", "headers": "[1", "created": "yesterday"})

    def unreachable(self, handler: Any) -> RedisStreamsConsumer:
        return RedisStreamsConsumer(f"redis://:{self.secret}@127.0.0.1:{free_port()}", "topic", handler)


class Changed(RedisStreamsPublisher):
    """Sends messages that are not quite the relay's."""

    def send(self, batch: Sequence[Envelope]) -> Iterable[Any]:
        return super().send([self.change(message) for message in batch])

    def change(self, message: Envelope) -> Envelope:
        return message


class DropsHeaders(Changed):
    def change(self, message: Envelope) -> Envelope:
        return replace(message, headers={})


class DrawsNewIds(Changed):
    def change(self, message: Envelope) -> Envelope:
        return replace(message, id=str(uuid4()))


class TakesTextOnly(Changed):
    def change(self, message: Envelope) -> Envelope:
        return replace(message, payload=(message.payload or b"").decode(errors="replace").encode())


class AcceptsAtOnce(RedisStreamsPublisher):
    def send(self, batch: Sequence[Envelope]) -> Iterable[Any]:
        list(super().send(batch))
        return [Accepted()] * len(batch)


class GuessesWhatWasNotSent(RedisStreamsPublisher):
    """A time limit says nothing about whether the server has taken the message."""

    def send(self, batch: Sequence[Envelope]) -> Iterable[Any]:
        for place, outcome in super().send(batch):
            yield place, Unavailable(outcome.reason) if isinstance(outcome, Unknown) else outcome

    def __init__(self, url: str, timeout: float = 10) -> None:
        super().__init__(url, timeout)
        self._client.ping = lambda: True


class IsNotOrdered(RedisStreamsPublisher):
    """Sends what is behind a failed message of a key."""

    ordered = True


class TurnsBatchesRound(RedisStreamsPublisher):
    ordered = True

    def send(self, batch: Sequence[Envelope]) -> Iterable[Any]:
        return [*dict(super().send(batch[::-1])).values()]


class ForgetsOne(RedisStreamsPublisher):
    def send(self, batch: Sequence[Envelope]) -> Iterable[Any]:
        return [outcome for _, outcome in super().send(batch)][:99]


class RefusesAll(RedisStreamsPublisher):
    def send(self, batch: Sequence[Envelope]) -> Iterable[Any]:
        outcomes: dict[int, Outcome] = dict(super().send(batch))
        return [next((each for each in outcomes.values() if each != Accepted()), Accepted())] * len(batch)


class NeverReturns(RedisStreamsPublisher):
    def __init__(self, url: str, timeout: float = 10) -> None:
        super().__init__(url, 4_000)
        self.timeout = timeout


class ChecksNothing(RedisStreamsPublisher):
    def check(self, lease: float) -> None: ...


class LeavesThreads(RedisStreamsPublisher):
    def send(self, batch: Sequence[Envelope]) -> Iterable[Any]:
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        return super().send(batch)


class IsClosedForEver(RedisStreamsPublisher):
    def close(self) -> None:
        self._client = client_of(f"redis://127.0.0.1:{free_port()}", 1)


class TellsItsPassword(RedisStreamsPublisher):
    def __repr__(self) -> str:
        return str(self._client.connection_pool.connection_kwargs)


class StopsForEver(RedisStreamsPublisher):
    def begin_no_more(self) -> None:
        self._client = client_of(f"redis://127.0.0.1:{free_port()}", 1)


class Serial(RedisStreamsPublisher):
    """Mixes up what several threads send."""

    def __init__(self, url: str, timeout: float = 10) -> None:
        super().__init__(url, timeout)
        self._batch: Sequence[Envelope] = ()

    def send(self, batch: Sequence[Envelope]) -> Iterable[Any]:
        self._batch = batch
        threading.Event().wait(0.001)
        return super().send(self._batch)


class ForksBadly(RedisStreamsPublisher):
    def __init__(self, url: str, timeout: float = 10) -> None:
        super().__init__(url, timeout)
        self._thread = threading.get_native_id()

    def send(self, batch: Sequence[Envelope]) -> Iterable[Any]:
        if threading.get_native_id() != self._thread:
            threading.Event().wait()
        return super().send(batch)


BROKEN = [
    (DropsHeaders, "test_everything_arrives_as_it_was_published"),
    (DrawsNewIds, "test_everything_arrives_as_it_was_published"),
    (DrawsNewIds, "test_a_resend_has_the_same_id"),
    (TakesTextOnly, "test_everything_arrives_as_it_was_published"),
    (TakesTextOnly, "test_a_tombstone"),
    (AcceptsAtOnce, "test_a_missing_topic"),
    (AcceptsAtOnce, "test_an_unreachable_server"),
    (AcceptsAtOnce, "test_a_frozen_server"),
    (AcceptsAtOnce, "test_a_killed_server"),
    (AcceptsAtOnce, "test_a_refused_message_harms_no_other"),
    (GuessesWhatWasNotSent, "test_a_frozen_server"),
    (IsNotOrdered, "test_behind_a_failed_message_nothing_of_its_key_is_sent"),
    (TurnsBatchesRound, "test_a_batch_with_many_messages_of_a_key"),
    (TurnsBatchesRound, "test_with_a_relay"),
    (ForgetsOne, "test_a_large_batch"),
    (RefusesAll, "test_a_refused_message_harms_no_other"),
    (NeverReturns, "test_a_frozen_server"),
    (ChecksNothing, "test_a_send_that_could_outlast_the_lease"),
    (LeavesThreads, "test_close"),
    (IsClosedForEver, "test_close"),
    (TellsItsPassword, "test_an_unreachable_server"),
    (StopsForEver, "test_begin_no_more"),
    (Serial, "test_sends_at_the_same_time"),
    (ForksBadly, "test_a_fork"),
]


@pytest.mark.parametrize(("kind", "test"), BROKEN, ids=lambda each: getattr(each, "__name__", each))
def test_a_broken_publisher_fails(
    private_redis: LocalRedis,
    kind: type[RedisStreamsPublisher],
    test: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each test of the suite fails for an adapter that breaks its promise."""
    suite = TestRedisStreamsPublisher()
    monkeypatch.setattr(TestRedisStreamsPublisher, "kind", kind)
    monkeypatch.setattr(TestRedisStreamsPublisher, "patience", 3.0)
    suite.use(private_redis)
    arguments = {"tmp_path": request.getfixturevalue("tmp_path")} if test == "test_with_a_relay" else {}
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        getattr(suite, test)(**arguments)
    suite.client.close()


class AcksFirst(RedisStreamsConsumer):
    """Acknowledges before the handler has decided."""

    def _new(self) -> dict[bytes, dict[bytes, bytes]]:
        batch = super()._new()
        if batch:
            self._client.xack(self._topic, "suite", *batch)
        return batch


class NeverAcks(RedisStreamsConsumer):
    def _settle(self, entry: bytes, fields: dict[bytes, bytes], decision: Decision) -> None: ...


class NeverGivesBack(RedisStreamsConsumer):
    idle = 10**9

    def _give_back(self) -> None: ...


class CountsEverything(RedisStreamsConsumer):
    """Counts every delivery as a failure of the message."""

    def _settle(self, entry: bytes, fields: dict[bytes, bytes], decision: Decision) -> None:
        self._client.hincrby(self._counts, entry, 1)
        if decision.delay and int(self._client.hget(self._counts, entry)) >= 2:
            decision = replace(decision, action=Action.DEAD_LETTER)
        super()._settle(entry, fields, decision)


class DropsDeadLetters(RedisStreamsConsumer):
    def _settle(self, entry: bytes, fields: dict[bytes, bytes], decision: Decision) -> None:
        if decision.action is Action.DEAD_LETTER:
            decision = replace(decision, action=Action.ACK)
        super()._settle(entry, fields, decision)


class DropsReasons(RedisStreamsConsumer):
    def _settle(self, entry: bytes, fields: dict[bytes, bytes], decision: Decision) -> None:
        super()._settle(entry, fields, replace(decision, reason=""))


class RetriesImmediately(RedisStreamsConsumer):
    def _settle(self, entry: bytes, fields: dict[bytes, bytes], decision: Decision) -> None:
        super()._settle(entry, fields, replace(decision, delay=0))


class DropsFailures(RedisStreamsConsumer):
    def _settle(self, entry: bytes, fields: dict[bytes, bytes], decision: Decision) -> None:
        super()._settle(entry, fields, replace(decision, action=Action.ACK))


class RetriesForEver(RedisStreamsConsumer):
    def __init__(self, url: str, topic: str, handler: Any, **options: Any) -> None:
        super().__init__(url, topic, handler, **options | {"max_attempts": None})


class IgnoresKeys(RedisStreamsConsumer):
    limits: ClassVar[dict[str, Any]] = {}


class ForgetsHeaders(RedisStreamsConsumer):
    def _new(self) -> dict[bytes, dict[bytes, bytes]]:
        return {entry: {**fields, b"headers": b"{}"} for entry, fields in super()._new().items()}


class EndsAtAnOutage(RedisStreamsConsumer):
    def _turn(self) -> None:
        try:
            super()._turn()
        except redis.ConnectionError as error:
            raise SystemExit(1) from error


class StopsAtStrangeMessages(RedisStreamsConsumer):
    def _new(self) -> dict[bytes, dict[bytes, bytes]]:
        batch = super()._new()
        for fields in batch.values():
            fields[b"id"].decode()
        return batch


class WaitsForHandlers(RedisStreamsConsumer):
    def __init__(self, url: str, topic: str, handler: Any, **options: Any) -> None:
        super().__init__(url, topic, handler, **options | {"grace": 3_600})


class SwallowsErrors(RedisStreamsConsumer):
    def _turn(self) -> None:
        with suppress(InvalidOption, SystemExit):
            super()._turn()


class TellsPasswords(RedisStreamsConsumer):
    def __repr__(self) -> str:
        return str(self._client.connection_pool.connection_kwargs)


class IgnoresSigterm(RedisStreamsConsumer):
    def run(self) -> None:
        threading_only = threading.Thread(target=super().run, daemon=True)
        threading_only.start()
        threading_only.join()


class AcksFirstSuite(TestRedisStreamsConsumer):
    """For another process, which finds it by its name."""

    __test__, kind = False, AcksFirst


class IgnoresSigtermSuite(TestRedisStreamsConsumer):
    """For another process, which finds it by its name."""

    __test__, kind = False, IgnoresSigterm


BROKEN_CONSUMERS: list[tuple[Any, str, tuple[Any, ...]]] = [
    (NeverAcks, "test_every_message_takes_effect_once", ()),
    (NeverAcks, "test_a_failed_message_comes_again", ("exactly once",)),
    (ForgetsHeaders, "test_what_a_handler_gets", ()),
    (AcksFirst, "test_a_handler_that_is_none", ("another result",)),
    (SwallowsErrors, "test_a_handler_that_is_none", ("SystemExit",)),
    (DropsFailures, "test_a_failed_message_comes_again", ("status",)),
    (RetriesImmediately, "test_a_retry_waits", ()),
    (DropsDeadLetters, "test_a_poison_message", ("exactly once",)),
    (DropsReasons, "test_a_poison_message", ("status",)),
    (RetriesForEver, "test_too_many_failures", ()),
    (DropsDeadLetters, "test_too_many_failures", ()),
    (IgnoresKeys, "test_the_order_of_a_key", ()),
    (StopsAtStrangeMessages, "test_strange_messages", ()),
    (NeverGivesBack, "test_a_stop_gives_back", ()),
    (WaitsForHandlers, "test_a_stop_within_the_grace", ()),
    (NeverGivesBack, "test_a_stop_within_the_grace", ()),
    (CountsEverything, "test_the_database_is_away", ()),
    (EndsAtAnOutage, "test_a_server_that_restarts", ()),
]


@pytest.mark.parametrize(
    ("kind", "test", "arguments"), BROKEN_CONSUMERS, ids=lambda each: getattr(each, "__name__", str(each))
)
def test_a_broken_consumer_fails(
    private_redis: LocalRedis, tmp_path: Path, kind: Any, test: str, arguments: tuple[Any, ...]
) -> None:
    """Each test of the suite fails for an adapter that breaks its promise."""
    suite = type(kind.__name__, (TestRedisStreamsConsumer,), {"kind": kind, "patience": 2.0})()
    fails(suite, private_redis, tmp_path, test, arguments)


@pytest.mark.long
@pytest.mark.parametrize(
    ("suite", "test", "arguments"),
    [
        (AcksFirstSuite, "test_a_killed_consumer", ("before commit",)),
        (AcksFirstSuite, "test_a_consumer_that_is_killed_under_load", ()),
        (IgnoresSigtermSuite, "test_sigterm", ()),
    ],
    ids=lambda each: getattr(each, "__name__", str(each)),
)
def test_a_broken_consumer_fails_in_its_own_process(
    private_redis: LocalRedis,
    tmp_path: Path,
    suite: Any,
    test: str,
    arguments: tuple[Any, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same for the tests that kill or stop a process."""
    monkeypatch.setattr(suite, "patience", 20.0)
    fails(suite(), private_redis, tmp_path, test, arguments)


def fails(
    suite: TestRedisStreamsConsumer, server: LocalRedis, folder: Path, test: str, arguments: tuple[Any, ...]
) -> None:
    """A test of the suite does not pass."""
    suite.use(server)
    suite.begin(folder)
    try:
        with pytest.raises((AssertionError, pytest.fail.Exception, SystemExit, KeyError)):
            getattr(suite, test)(*arguments)
    finally:
        suite.end()
        suite.client.close()


def test_a_password_in_a_repr_fails(caplog: pytest.LogCaptureFixture) -> None:
    """The suite looks for the password of a server that is not there."""
    suite = TestRedisStreamsConsumer()
    suite.unreachable = lambda handler: TellsPasswords(  # type: ignore[method-assign]
        f"redis://:{suite.secret}@127.0.0.1:{free_port()}", "topic", handler
    )
    with pytest.raises(AssertionError):
        suite.test_an_unreachable_server(caplog)
