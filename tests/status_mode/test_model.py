"""The life of messages in status-table mode compared with a model, on every store."""

from dataclasses import dataclass
from typing import ClassVar
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from inbox import Status, Verdict
from inbox._status_mode.stores import UNDO_ATTEMPTS, HeldRecord, Store
from tests.support.status_mode.stores import ENDS, change, held, request

KEYS = ("a", "A", "a ")
MAX_ATTEMPTS = 2
DIGESTS = (None, None, b"1" * 16, b"2" * 16)
FINAL = {
    Status.CONSUMED: Verdict.DUPLICATE,
    Status.DEAD: Verdict.DEAD,
    Status.HALTED: Verdict.HALTED,
}

keys = st.sampled_from(KEYS)
which = st.integers(0, 30)


@dataclass
class Expected:
    """The expected record of one message."""

    token: int
    digest: bytes | None
    status: Status = Status.CONSUMING
    is_over: bool = False
    """Whether the lease has ended."""
    started: int = 1
    finished: int = 0
    pending: str | None = None
    undos: int = 0

    def verdict(self, digest: bytes | None) -> Verdict:
        """The expected verdict of a claim with this payload."""
        if self.digest and digest and self.digest != digest:
            return Verdict.MISMATCH
        if self.status in FINAL:
            return FINAL[self.status]
        if self.status is Status.CONSUMING and not self.is_over:
            return Verdict.IN_FLIGHT
        if self.pending:
            return Verdict.HALTED
        allowed = MAX_ATTEMPTS + (UNDO_ATTEMPTS if self.undos else 0)
        return Verdict.NEW if self.started < allowed else Verdict.DEAD


class Life(RuleBasedStateMachine):
    """Claims, current ones and zombies, that act in any order."""

    store: ClassVar[Store]

    def __init__(self) -> None:
        super().__init__()
        self.consumer = uuid4().hex
        self.expected: dict[str, Expected] = {}
        self.claims: list[HeldRecord] = []

    @rule(key=keys, digest=st.sampled_from(DIGESTS))
    def claim(self, key: str, digest: bytes | None) -> None:
        """Deliver a message."""
        expected = self.expected.get(key)
        verdict = Verdict.NEW if expected is None else expected.verdict(digest)
        asked = request(key, consumer=self.consumer, digest=digest, max_attempts=MAX_ATTEMPTS)
        answer = self.store.claim(asked)
        assert answer.verdict is verdict
        token = answer.record.token
        if verdict is Verdict.NEW:
            assert all(token > earlier.token for earlier in self.claims if earlier.key == key)
            self.claims.append(held(answer))
            self._take(key, token, digest)
        elif expected is not None and expected.status not in FINAL and verdict in FINAL.values():
            assert token > expected.token
            expected.status, expected.token = Status(verdict.value), token

    def _take(self, key: str, token: int, digest: bytes | None) -> None:
        before = self.expected.get(key)
        after = Expected(token, digest or (before.digest if before else None))
        if before is not None:
            after.started, after.finished = before.started + 1, before.finished
            after.undos = before.undos
        self.expected[key] = after

    @rule(number=which)
    def renew(self, number: int) -> None:
        """Send a heartbeat."""
        if current := self._write(number, lease=60.0):
            current.is_over = False

    @rule(number=which)
    def let_the_lease_end(self, number: int) -> None:
        """End the lease, as if it had been shorter."""
        if current := self._write(number, lease=0.0):
            current.is_over = True

    @rule(number=which, pending=st.sampled_from(["", "charge"]), undos=st.integers(0, 1))
    def do_a_step(self, number: int, pending: str, undos: int) -> None:
        """Begin or end a step, which renews the lease."""
        if current := self._write(number, lease=60.0, steps="{}", pending_step=pending, undos=undos):
            current.is_over, current.pending, current.undos = False, pending or None, undos

    @rule(number=which, status=st.sampled_from(list(ENDS)))
    def end(self, number: int, status: Status) -> None:
        """End the handler with success or with one of three failures."""
        if current := self._write(number, status=status, **ENDS[status]):
            current.status, current.finished = status, current.finished + 1
            current.pending = str(ENDS[status].get("pending_step", "")) or current.pending

    @rule(number=which)
    def release(self, number: int) -> None:
        """Give the message back."""
        if current := self._write(number, status=Status.FAILED, started=-1):
            current.status, current.started = Status.FAILED, current.started - 1

    @rule(number=which)
    def forget(self, number: int) -> None:
        """Delete the record, as a purge or an operator does."""
        if not self.claims:
            return
        claim = self.claims[number % len(self.claims)]
        expected = self.expected.get(claim.key)
        is_newest = expected is not None and expected.token == claim.token
        assert self.store.delete(claim, list(Status)) is is_newest
        if is_newest:
            del self.expected[claim.key]

    def _write(self, number: int, **fields: object) -> Expected | None:
        """Write as one of the claims; returns the expected record if the write has to be accepted."""
        if not self.claims:
            return None
        claim = self.claims[number % len(self.claims)]
        expected = self.expected.get(claim.key)
        is_newest = expected is not None and expected.token == claim.token
        if is_newest and expected is not None and fields.get("status") is expected.status:
            return None  # the same write again is accepted and changes nothing
        accepted = is_newest and expected is not None and expected.status is Status.CONSUMING
        assert self.store.write(claim, change(**fields)) is accepted
        return expected if accepted else None

    @invariant()
    def everything_is_as_expected(self) -> None:
        """Each record matches the model."""
        found = {record.key: record for record in self.store.list(self.consumer, None, 10)}
        assert found.keys() == self.expected.keys()
        for key, record in found.items():
            expected = self.expected[key]
            assert (record.token, record.status, record.digest) == (
                expected.token,
                expected.status,
                expected.digest,
            )
            assert (record.attempts_started, record.attempts_finished) == (
                expected.started,
                expected.finished,
            )
            assert (record.pending_step, record.undos) == (expected.pending, expected.undos)


@pytest.mark.quick("postgresql", "sqlite")
def test_any_life_of_messages_is_as_expected(store: Store) -> None:
    """For any sequence of deliveries, heartbeats, steps, ends, releases, expired leases and purges, by
    current claims and by zombies: every verdict, every rejected write and every record is what the model
    expects."""

    class LifeHere(Life):
        """The state machine on this store."""

    LifeHere.store = store
    run_state_machine_as_test(
        LifeHere,
        settings=settings(
            max_examples=25,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
