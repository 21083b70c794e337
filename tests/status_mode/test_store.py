"""The promises of every store of status-table mode about claims, keys and clocks: one suite, run on each
store."""

import json
import sys
import time
from datetime import UTC, timedelta
from functools import partial
from typing import Any

import pytest

from inbox import Status, Verdict
from inbox._status_mode.stores import UNDO_ATTEMPTS, Store
from inbox._status_mode.stores.records import Judgement, judge
from tests.support.on_servers import STORES, each_on, on
from tests.support.status_mode.stores import (
    CONSUMER,
    DIGESTS,
    LEASE,
    NAMES,
    PAYLOAD,
    change,
    end,
    held,
    request,
    stored,
    untimed,
)

pytestmark = pytest.mark.mysql

in_each_store = partial(each_on, "sqlite", among=NAMES, fixture="place")
TOLERANCE = timedelta(seconds=30)
"""What a slow machine may take between two statements; leases here are longer."""


def test_a_new_message_is_ours(store: Store) -> None:
    """The first claim of a key is NEW; the record says who holds it, since when and for how long."""
    asked = request(owner="host:1", digest=DIGESTS[0], payload=PAYLOAD)
    answer = store.claim(asked)
    record = answer.record
    assert answer.verdict is Verdict.NEW
    assert untimed(stored(store)) == untimed(record)
    assert (record.consumer, record.key, record.claim) == (CONSUMER, "a", asked.claim)
    assert (record.status, record.owner, record.digest) == (Status.CONSUMING, "host:1", DIGESTS[0])
    assert (record.attempts_started, record.attempts_finished, record.undos) == (1, 0, 0)
    assert record.lease_until is not None
    assert abs(record.lease_until - record.created_at - timedelta(seconds=LEASE)) < TOLERANCE
    assert abs(answer.now - record.created_at) < TOLERANCE
    assert abs(record.updated_at - record.created_at) < TOLERANCE
    empty = ("payload", "result", "error", "steps", "history", "pending_step")
    assert {getattr(record, name) for name in empty} == {None}


def test_a_message_that_is_held_is_in_flight(store: Store) -> None:
    """During the lease another claim gets IN_FLIGHT with the time left, and changes nothing."""
    store.claim(request())
    before = stored(store)
    second = store.claim(request())
    assert second.verdict is Verdict.IN_FLIGHT
    assert second.record == stored(store) == before
    assert timedelta() < second.lease_left <= timedelta(seconds=LEASE)


def test_a_lease_that_is_over_can_be_taken(store: Store) -> None:
    """After the lease the next claim is NEW with a larger token; the attempt that never ended is counted and
    listed in the history, and everything that it stored is kept."""
    first = store.claim(request(lease=0.0, owner="first", digest=DIGESTS[0]))
    assert store.write(held(first), change(steps='{"s":1}', undos=1))
    before = stored(store)
    asked = request(owner="second")
    second = store.claim(asked)
    record = second.record
    assert second.verdict is Verdict.NEW
    assert (record.claim, record.owner, record.attempts_started) == (asked.claim, "second", 2)
    assert record.token > before.token
    assert (record.steps, record.undos, record.digest) == ('{"s":1}', 1, DIGESTS[0])
    assert record.created_at == before.created_at
    (entry,) = json.loads(record.history or "")
    assert (entry["attempt"], entry["owner"]) == (1, "first")
    assert entry["ended"] == before.lease_until.isoformat()  # type: ignore[union-attr]
    assert "lease" in entry["error"]


def test_a_failed_message_can_be_taken_at_once(store: Store) -> None:
    """A failed message can be claimed again immediately; the new attempt's record does not show the old
    error."""
    first = store.claim(request())
    history = '[{"attempt":1}]'
    assert store.write(held(first), change(status=Status.FAILED, finished=1, error="no", history=history))
    second = store.claim(request())
    assert second.verdict is Verdict.NEW
    assert second.record.token > first.record.token
    assert (second.record.attempts_started, second.record.attempts_finished) == (2, 1)
    assert (second.record.error, second.record.history) == (None, history)


SETTLED = [
    (Status.CONSUMED, Verdict.DUPLICATE),
    (Status.DEAD, Verdict.DEAD),
    (Status.HALTED, Verdict.HALTED),
]


@in_each_store("status,verdict", SETTLED, SETTLED[:1])
def test_what_is_settled_stays_so(store: Store, status: Status, verdict: Verdict) -> None:
    """A consumed, dead or halted message never runs again, and claiming it changes nothing."""
    before = end(store, store.claim(request()), status)
    answer = store.claim(request(lease=0.0, max_attempts=100))
    assert answer.verdict is verdict
    assert answer.record == stored(store) == before


@in_each_store("status", [(status,) for status in Status], [(Status.CONSUMED,)])
def test_another_payload_is_a_mismatch(store: Store, status: Status) -> None:
    """The same key with another digest is MISMATCH, whatever the message's status, and changes nothing."""
    first = store.claim(request(lease=0.0, digest=DIGESTS[0]))
    before = stored(store) if status is Status.CONSUMING else end(store, first, status)
    answer = store.claim(request(digest=DIGESTS[1]))
    assert answer.verdict is Verdict.MISMATCH
    assert answer.record == stored(store) == before


def test_no_payload_matches_any(store: Store) -> None:
    """A claim without a digest matches any payload, and the stored digest is kept."""
    for key, first, second in (("a", DIGESTS[0], None), ("b", None, DIGESTS[0])):
        store.claim(request(key, lease=0.0, digest=first))
        answer = store.claim(request(key, lease=0.0, digest=second))
        assert (answer.verdict, answer.record.digest) == (Verdict.NEW, DIGESTS[0])
        assert store.claim(request(key, digest=DIGESTS[1])).verdict is Verdict.MISMATCH


def test_attempts_that_never_ended_are_used_up_too(store: Store) -> None:
    """Attempts that never ended count: once they are used up, the next claim finds the message DEAD; payload,
    error and history are kept."""
    for number in (1, 2, 3):
        last = store.claim(request(lease=0.0))
        assert last.record.attempts_started == number
    answer = store.claim(request(payload=PAYLOAD))
    record = answer.record
    assert (answer.verdict, record.status, record.lease_until) == (Verdict.DEAD, Status.DEAD, None)
    assert (record.attempts_started, record.attempts_finished, record.payload) == (3, 0, PAYLOAD)
    assert [entry["attempt"] for entry in json.loads(record.history or "")] == [1, 2, 3]
    assert "lease" in (record.error or "")
    assert stored(store) == record
    assert store.claim(request(max_attempts=100)).record == record
    assert not store.write(held(last), change(status=Status.DEAD, finished=1, error="a zombie's"))
    assert stored(store) == record


def test_a_failed_message_is_dead_when_fewer_attempts_are_allowed(store: Store) -> None:
    """A claim that allows fewer attempts than were made finds the message DEAD, with its last error."""
    store.claim(request(lease=0.0))
    end(store, store.claim(request()), Status.FAILED)
    answer = store.claim(request(max_attempts=2))
    assert (answer.verdict, answer.record.status, answer.record.error) == (Verdict.DEAD, Status.DEAD, "no")


def test_there_are_more_attempts_while_something_is_to_be_undone(store: Store) -> None:
    """While finished steps are left to undo, a limited number of further attempts is allowed."""
    for _ in range(3 + UNDO_ATTEMPTS):
        claimed = store.claim(request(lease=0.0))
        assert claimed.verdict is Verdict.NEW
        assert store.write(held(claimed), change(undos=1))
    assert store.claim(request()).verdict is Verdict.DEAD


def test_a_pending_step_halts_the_message(store: Store) -> None:
    """A message with a step that must not be repeated and has no recorded end is IN_FLIGHT during the lease,
    and HALTED after it, whatever its former holder still writes."""
    claimed = store.claim(request())
    assert store.write(held(claimed), change(pending_step="charge"))
    assert store.claim(request()).verdict is Verdict.IN_FLIGHT
    assert store.write(held(claimed), change(lease=0.0))
    answer = store.claim(request(payload=PAYLOAD))
    record = answer.record
    assert (answer.verdict, record.status, record.lease_until) == (Verdict.HALTED, Status.HALTED, None)
    assert (record.pending_step, record.payload) == ("charge", PAYLOAD)
    assert record.error
    assert not store.write(held(claimed), change(status=Status.HALTED, finished=1, error="a zombie's"))
    assert stored(store) == record


WRITTEN: list[tuple[dict[str, Any], Verdict, int]] = [
    ({"lease": LEASE}, Verdict.IN_FLIGHT, 1),
    ({"pending_step": "charge"}, Verdict.HALTED, 1),
    ({"status": Status.CONSUMED, "finished": 1}, Verdict.DUPLICATE, 1),
    ({"undos": 1}, Verdict.NEW, 2),
]


@in_each_store("fields,verdict,attempts", WRITTEN, WRITTEN[:2])
def test_what_is_written_between_look_and_claim_counts(
    store: Store, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], verdict: Verdict, attempts: int
) -> None:
    """If the holder of an expired lease writes between another worker's look and its claim, that worker looks
    again."""
    first = store.claim(request(lease=0.0, max_attempts=1))
    holder = [change(**fields)]

    def judge_slowly(*seen: Any) -> Judgement:
        judgement = judge(*seen)
        if holder:
            assert store.write(held(first), holder.pop())
        return judgement

    monkeypatch.setattr(sys.modules[type(store).__module__], "judge", judge_slowly)
    answer = store.claim(request(max_attempts=1))
    assert (answer.verdict, answer.record.attempts_started) == (verdict, attempts)


def test_a_claim_whose_answer_was_lost_is_recognised(store: Store) -> None:
    """The same claim sent again is still NEW: not IN_FLIGHT, and no second attempt."""
    asked = request()
    first = store.claim(asked)
    again = store.claim(asked)
    assert (again.verdict, again.record) == (Verdict.NEW, stored(store))
    assert untimed(again.record) == untimed(first.record)
    end(store, first, Status.CONSUMED)
    assert store.claim(asked).verdict is Verdict.DUPLICATE


def test_tokens_grow_and_never_repeat(store: Store) -> None:
    """Each claim of a key has a larger token than all earlier ones, even if the record was deleted in
    between; a deleted claim's token is rejected."""
    tokens = []
    for turn in range(12):
        claimed = store.claim(request(lease=0.0, max_attempts=100))
        assert claimed.verdict is Verdict.NEW
        tokens.append(claimed.record.token)
        if turn % 3 == 2:
            assert store.delete(held(claimed), [Status.CONSUMING])
            assert not store.write(held(claimed), change(lease=LEASE))
            # SQLite's clock has milliseconds; no purge deletes a record that was claimed in the same one.
            time.sleep(0.002)
    assert tokens == sorted(set(tokens))


KEYS = [
    "A1",
    "a1",
    "A1 ",
    " A1",
    "\uff211",
    "é",
    "e\u0301",
    "ß",
    "ss",
    "%",
    "_",
    "*",
    "[a]",
    "a:b",
    "{a}",
    "\n",
    "🙂" * 128,
]


@on(*STORES, "psycopg2", "mysqldb", fixture="place")
def test_keys_compare_byte_for_byte(store: Store) -> None:
    """Keys that differ by case, spaces, accents or width are different messages, and come back unchanged."""
    tokens = {key: store.claim(request(key)).record.token for key in KEYS}
    for key in KEYS:
        again = store.claim(request(key))
        assert (again.verdict, again.record.key) == (Verdict.IN_FLIGHT, key)
        assert again.record.token == tokens[key]
    assert {record.key for record in store.list(CONSUMER, None, 100)} == set(KEYS)


def test_consumers_do_not_see_each_other(store: Store) -> None:
    """Two consumers can take the same message, even if consumer and key together read the same."""
    pairs = [("a", "b:c"), ("a:b", "c"), ("A", "b:c"), ("1:a", "b"), ("1", "a:b"), ("a*", "c"), ("é", "c")]
    for consumer, key in pairs:
        assert store.claim(request(key, consumer=consumer)).verdict is Verdict.NEW
    for consumer, key in pairs:
        assert [record.key for record in store.list(consumer, None, 10)] == [key]
        assert stored(store, key, consumer).consumer == consumer
    assert len(store.list(None, None, 100)) == len(pairs)


@on(*STORES, "psycopg2", "mysqldb", fixture="place")
def test_a_million_bytes_come_back_as_they_were(store: Store) -> None:
    """Results, steps and payloads of a million bytes, and text in any language, are stored completely."""
    long = json.dumps("é🙂" * 166_000, ensure_ascii=False)
    claimed = store.claim(request())
    payload = bytes(range(256)) * 4_000
    assert store.write(held(claimed), change(steps=long, payload=payload))
    assert store.write(held(claimed), change(status=Status.CONSUMED, finished=1, result=long))
    answer = store.claim(request())
    assert (answer.record.result, answer.record.steps, answer.record.payload) == (long, long, payload)


def test_a_list_has_those_first_that_changed_longest_ago(store: Store) -> None:
    """`list` returns records by consumer and status, the longest unchanged first, up to the limit."""
    claimed = {key: store.claim(request(key)) for key in "abcd"}
    store.claim(request("e", consumer="billing"))
    for key in "cab":
        store.write(held(claimed[key]), change(status=Status.FAILED, finished=1, error=key))
        instant = store.now()
        while store.now() == instant:  # SQLite counts milliseconds
            pass
    assert [each.key for each in store.list(CONSUMER, Status.FAILED, 10)] == ["c", "a", "b"]
    assert [each.key for each in store.list(None, Status.FAILED, 2)] == ["c", "a"]
    assert [each.key for each in store.list(CONSUMER, Status.CONSUMING, 10)] == ["d"]
    assert {each.key for each in store.list(None, Status.CONSUMING, 10)} == {"d", "e"}
    assert [each.key for each in store.list(CONSUMER, None, 10)] == ["d", "c", "a", "b"]
    assert store.list(CONSUMER, Status.DEAD, 10) == store.list("nobody", None, 10) == []
    assert store.list(CONSUMER, Status.FAILED, 1)[0] == stored(store, "c")


def test_the_clock_goes_on(store: Store) -> None:
    """The store's clock is in UTC and does not stand still."""
    first = store.now()
    assert first.tzinfo is UTC
    assert store.now() >= first
    while store.now() == first:
        pass
