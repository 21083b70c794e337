"""Each test of the consumers' conformance suite fails for some broken consumer."""

import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import redis

from examples.embedded_postgres import free_port
from inbox import Action, Decision
from inbox.errors import InvalidOption
from tests.brokers import test_redis_suites as suites
from tests.servers.redis import LocalRedis
from tests.support.brokers.redis_consumer import SmallConsumer


class AcksFirst(SmallConsumer):
    """Acknowledges a message before the handler has decided."""

    def _new(self) -> dict[bytes, dict[bytes, bytes]]:
        batch = super()._new()
        if batch:
            self._client.xack(self._topic, "suite", *batch)
        return batch


class NeverAcks(SmallConsumer):
    def _settle(self, entry: bytes, fields: dict[bytes, bytes], decision: Decision) -> None: ...


class NeverGivesBack(SmallConsumer):
    idle = 10**9

    def _give_back(self) -> None: ...


class CountsEverything(SmallConsumer):
    """Counts every delivery as a failure of the message."""

    def _settle(self, entry: bytes, fields: dict[bytes, bytes], decision: Decision) -> None:
        self._client.hincrby(self._counts, entry, 1)
        if decision.delay and int(self._client.hget(self._counts, entry)) >= 2:
            decision = replace(decision, action=Action.DEAD_LETTER)
        super()._settle(entry, fields, decision)


class DropsDeadLetters(SmallConsumer):
    def _settle(self, entry: bytes, fields: dict[bytes, bytes], decision: Decision) -> None:
        if decision.action is Action.DEAD_LETTER:
            decision = replace(decision, action=Action.ACK)
        super()._settle(entry, fields, decision)


class LosesDeadLetters(SmallConsumer):
    """Acknowledges dead letters even if it cannot store them."""

    def _settle(self, entry: bytes, fields: dict[bytes, bytes], decision: Decision) -> None:
        try:
            super()._settle(entry, fields, decision)
        except redis.ResponseError:
            self._client.xack(self._topic, "suite", entry)
            self._held.pop(entry, None)


class AcksWhatWaits(SmallConsumer):
    """Acknowledges waiting messages together with a message that succeeds."""

    def _settle(self, entry: bytes, fields: dict[bytes, bytes], decision: Decision) -> None:
        super()._settle(entry, fields, decision)
        if decision.action is Action.ACK and self._held:
            self._client.xack(self._topic, "suite", *self._held)


class CountsAttempts(SmallConsumer):
    """Counts deliveries, and lets the listener compare that count."""

    def _settle(self, entry: bytes, fields: dict[bytes, bytes], decision: Decision) -> None:
        self._client.hincrby(self._counts, entry, 1)
        super()._settle(entry, fields, decision)


class DropsReasons(SmallConsumer):
    def _settle(self, entry: bytes, fields: dict[bytes, bytes], decision: Decision) -> None:
        super()._settle(entry, fields, replace(decision, reason=""))


class RetriesImmediately(SmallConsumer):
    def _settle(self, entry: bytes, fields: dict[bytes, bytes], decision: Decision) -> None:
        super()._settle(entry, fields, replace(decision, delay=0))


class DropsFailures(SmallConsumer):
    def _settle(self, entry: bytes, fields: dict[bytes, bytes], decision: Decision) -> None:
        super()._settle(entry, fields, replace(decision, action=Action.ACK))


class RetriesForEver(SmallConsumer):
    def __init__(self, url: str, topic: str, handler: Any, **options: Any) -> None:
        super().__init__(url, topic, handler, **options | {"max_attempts": None})


class IgnoresKeys(SmallConsumer):
    limits: ClassVar[dict[str, Any]] = {}


class ForgetsHeaders(SmallConsumer):
    def _new(self) -> dict[bytes, dict[bytes, bytes]]:
        return {entry: {**fields, b"headers": b"{}"} for entry, fields in super()._new().items()}


class DropsEmptyKeys(SmallConsumer):
    def _new(self) -> dict[bytes, dict[bytes, bytes]]:
        found = super()._new()
        return {
            entry: {name: value for name, value in fields.items() if (name, value) != (b"key", b"")}
            for entry, fields in found.items()
        }


class EndsAtAnOutage(SmallConsumer):
    def _turn(self) -> None:
        try:
            super()._turn()
        except redis.ConnectionError as error:
            raise SystemExit(1) from error


class StopsAtStrangeMessages(SmallConsumer):
    def _new(self) -> dict[bytes, dict[bytes, bytes]]:
        batch = super()._new()
        for fields in batch.values():
            fields[b"id"].decode()
        return batch


class WaitsForHandlers(SmallConsumer):
    def __init__(self, url: str, topic: str, handler: Any, **options: Any) -> None:
        super().__init__(url, topic, handler, **options | {"grace": 3_600})


class SwallowsErrors(SmallConsumer):
    def _turn(self) -> None:
        with suppress(InvalidOption, SystemExit):
            super()._turn()


class TellsPasswords(SmallConsumer):
    def __repr__(self) -> str:
        return str(self._client.connection_pool.connection_kwargs)


class IgnoresSigterm(SmallConsumer):
    def run(self) -> None:
        threading_only = threading.Thread(target=super().run, daemon=True)
        threading_only.start()
        threading_only.join()


class TakesOver(SmallConsumer):
    """Does not keep what its handlers run for longer than others wait."""

    def _keep(self) -> None: ...


class AcksFirstSuite(suites.TestSmallConsumer):
    """For another process, which looks it up by name."""

    __test__, kind = False, AcksFirst


class TakesOverSuite(suites.TestSmallConsumer):
    """For another process, which finds it by its name."""

    __test__, kind = False, TakesOver


class IgnoresSigtermSuite(suites.TestSmallConsumer):
    """For another process, which looks it up by name."""

    __test__, kind = False, IgnoresSigterm


BROKEN_CONSUMERS: list[tuple[Any, str, tuple[Any, ...]]] = [
    (NeverAcks, "test_every_message_takes_effect_once", ()),
    (NeverAcks, "test_a_failed_message_comes_again", ("exactly once",)),
    (ForgetsHeaders, "test_what_a_handler_gets", ()),
    (DropsEmptyKeys, "test_what_a_handler_gets", ()),
    (LosesDeadLetters, "test_a_dead_letter_that_cannot_be_stored", ()),
    (AcksWhatWaits, "test_a_stop_while_a_message_waits", ()),
    (CountsAttempts, "test_the_database_is_away", ()),
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


@pytest.mark.long(but_on="NeverAcks")
@pytest.mark.parametrize(
    ("kind", "test", "arguments"), BROKEN_CONSUMERS, ids=lambda each: getattr(each, "__name__", str(each))
)
def test_a_broken_consumer_fails(
    private_redis: LocalRedis, tmp_path: Path, kind: Any, test: str, arguments: tuple[Any, ...]
) -> None:
    """Each test of the suite fails for an adapter that breaks the promise it checks."""
    suite = type(kind.__name__, (suites.TestSmallConsumer,), {"kind": kind, "patience": 2.0})()
    fails(suite, private_redis, tmp_path, test, arguments)


@pytest.mark.long
@pytest.mark.parametrize(
    ("suite", "test", "arguments"),
    [
        (AcksFirstSuite, "test_a_killed_consumer", ("before commit",)),
        (AcksFirstSuite, "test_a_consumer_that_is_killed_under_load", ()),
        (IgnoresSigtermSuite, "test_sigterm", ()),
        (TakesOverSuite, "test_a_handler_that_runs_long", ()),
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
    """Each test that kills or stops a process fails for a broken adapter, too."""
    monkeypatch.setattr(suite, "patience", 20.0)
    fails(suite(), private_redis, tmp_path, test, arguments)


def fails(suite: Any, server: LocalRedis, folder: Path, test: str, arguments: tuple[Any, ...]) -> None:
    """Check that a test of the suite does not pass."""
    suite.use(server)
    suite.begin(folder)
    try:
        with pytest.raises((AssertionError, pytest.fail.Exception, SystemExit, KeyError)):
            getattr(suite, test)(*arguments)
    finally:
        suite.end()
        suite.client.close()


def test_a_password_in_a_repr_fails(caplog: pytest.LogCaptureFixture) -> None:
    """The suite's test with an unreachable server fails if the adapter shows the password."""
    suite = suites.TestSmallConsumer()
    suite.unreachable = lambda handler: TellsPasswords(  # type: ignore[method-assign]
        f"redis://:{suite.secret}@127.0.0.1:{free_port()}", "topic", handler
    )
    with pytest.raises(AssertionError):
        suite.test_an_unreachable_server(caplog)
