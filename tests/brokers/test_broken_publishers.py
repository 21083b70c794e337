"""Each test of the publishers' conformance suite fails for some broken publisher."""

import threading
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any
from uuid import uuid4

import pytest
import redis

from examples.embedded_postgres import free_port
from outbox import Accepted, Envelope, Outcome, Refused, Unavailable, Unknown
from outbox.errors import UnsafeBroker
from tests.brokers import test_redis_suites as suites
from tests.servers.redis import LocalRedis
from tests.support.brokers.redis_streams import SmallPublisher, client_of, fields_of, outcome_of


class Changed(SmallPublisher):
    """Sends messages that differ slightly from the relay's."""

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


class DropsEmptyKeys(Changed):
    def change(self, message: Envelope) -> Envelope:
        return replace(message, key=message.key or None)


class DropsHeadersOfItsOwnNames(Changed):
    def change(self, message: Envelope) -> Envelope:
        return replace(message, headers={k: v for k, v in message.headers.items() if k != "payload"})


class TakesTextOnly(Changed):
    def change(self, message: Envelope) -> Envelope:
        return replace(message, payload=(message.payload or b"").decode(errors="replace").encode())


class AcceptsAtOnce(SmallPublisher):
    def send(self, batch: Sequence[Envelope]) -> Iterable[Any]:
        list(super().send(batch))
        return [Accepted()] * len(batch)


class GuessesWhatWasNotSent(SmallPublisher):
    """Reports unknown messages as unavailable, although the server may have taken them."""

    def send(self, batch: Sequence[Envelope]) -> Iterable[Any]:
        for place, outcome in super().send(batch):
            yield place, Unavailable(outcome.reason) if isinstance(outcome, Unknown) else outcome

    def __init__(self, url: str, timeout: float = 10) -> None:
        super().__init__(url, timeout)
        self._client.ping = lambda: True


class RefusesWhatIsNotThereYet(SmallPublisher):
    def send(self, batch: Sequence[Envelope]) -> Iterable[Any]:
        for place, outcome in super().send(batch):
            yield place, Refused(outcome.reason) if isinstance(outcome, Unavailable) else outcome


class KnowsNothing(SmallPublisher):
    """Reports unsent messages as unknown, so that they become dead letters after many attempts."""

    def send(self, batch: Sequence[Envelope]) -> Iterable[Any]:
        for place, outcome in super().send(batch):
            yield place, Unknown(outcome.reason) if isinstance(outcome, Unavailable) else outcome


class ChecksWithItsServerOnly(SmallPublisher):
    def check(self, lease: float) -> None:
        try:
            self._client.ping()
        except redis.RedisError as error:
            raise UnsafeBroker("there is no server") from error


class LimitsEachMessage(SmallPublisher):
    """Applies its time limit to each message, so a batch takes many times as long."""

    def send(self, batch: Sequence[Envelope]) -> Iterable[Any]:
        return [outcome for message in batch for _, outcome in super(LimitsEachMessage, self).send([message])]


class MixesUpAnswers(SmallPublisher):
    """Keeps using a connection on which an answer is still to come."""

    def __init__(self, url: str, timeout: float = 10) -> None:
        super().__init__(url, timeout)
        self._connection = self._client.connection_pool.get_connection()

    def send(self, batch: Sequence[Envelope]) -> Iterable[Any]:
        outcome: Outcome = Accepted()
        for message in batch:
            outcome = self._sent(message) if outcome == Accepted() else Unavailable("behind a failed one")
            yield outcome

    def _sent(self, message: Envelope) -> Outcome:
        fields = chain(*fields_of(message).items())
        self._connection.send_command("XADD", message.topic, "NOMKSTREAM", "*", *fields)
        try:
            return outcome_of(self._connection.read_response(disconnect_on_error=False))
        except redis.RedisError as error:
            return outcome_of(error)


class IsNotOrdered(SmallPublisher):
    """Sends later messages of a key after one has failed."""

    ordered = True


class TurnsBatchesRound(SmallPublisher):
    ordered = True

    def send(self, batch: Sequence[Envelope]) -> Iterable[Any]:
        return [*dict(super().send(batch[::-1])).values()]


class ForgetsOne(SmallPublisher):
    def send(self, batch: Sequence[Envelope]) -> Iterable[Any]:
        return [outcome for _, outcome in super().send(batch)][:99]


class RefusesAll(SmallPublisher):
    def send(self, batch: Sequence[Envelope]) -> Iterable[Any]:
        outcomes: dict[int, Outcome] = dict(super().send(batch))
        return [next((each for each in outcomes.values() if each != Accepted()), Accepted())] * len(batch)


class NeverReturns(SmallPublisher):
    def __init__(self, url: str, timeout: float = 10) -> None:
        super().__init__(url, 4_000)
        self.timeout = timeout


class ChecksNothing(SmallPublisher):
    def check(self, lease: float) -> None: ...


class LeavesThreads(SmallPublisher):
    def send(self, batch: Sequence[Envelope]) -> Iterable[Any]:
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        return super().send(batch)


class IsClosedForEver(SmallPublisher):
    def close(self) -> None:
        self._client = client_of(f"redis://127.0.0.1:{free_port()}", 1)


class TellsItsPassword(SmallPublisher):
    def __repr__(self) -> str:
        return str(self._client.connection_pool.connection_kwargs)


class StopsForEver(SmallPublisher):
    def begin_no_more(self) -> None:
        self._client = client_of(f"redis://127.0.0.1:{free_port()}", 1)


class Serial(SmallPublisher):
    """Mixes up the messages of several threads."""

    def __init__(self, url: str, timeout: float = 10) -> None:
        super().__init__(url, timeout)
        self._batch: Sequence[Envelope] = ()

    def send(self, batch: Sequence[Envelope]) -> Iterable[Any]:
        self._batch = batch
        threading.Event().wait(0.001)
        return super().send(self._batch)


class ForksBadly(SmallPublisher):
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
    (DropsEmptyKeys, "test_everything_arrives_as_it_was_published"),
    (DropsHeadersOfItsOwnNames, "test_everything_arrives_as_it_was_published"),
    (RefusesWhatIsNotThereYet, "test_a_missing_topic"),
    (KnowsNothing, "test_an_unreachable_server"),
    (ChecksWithItsServerOnly, "test_an_unreachable_server"),
    (LimitsEachMessage, "test_a_frozen_server"),
    (MixesUpAnswers, "test_a_frozen_server"),
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


# Each row breaks another promise of the suite.
@pytest.mark.long(but_on="AcceptsAtOnce")
@pytest.mark.parametrize(("kind", "test"), BROKEN, ids=lambda each: getattr(each, "__name__", each))
def test_a_broken_publisher_fails(
    private_redis: LocalRedis,
    kind: type[SmallPublisher],
    test: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each test of the suite fails for an adapter that breaks the promise it checks."""
    suite = suites.TestSmallPublisher()
    monkeypatch.setattr(suites.TestSmallPublisher, "kind", kind)
    monkeypatch.setattr(suites.TestSmallPublisher, "patience", 3.0)
    suite.use(private_redis)
    arguments = {"tmp_path": request.getfixturevalue("tmp_path")} if test == "test_with_a_relay" else {}
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        getattr(suite, test)(**arguments)
    suite.client.close()
