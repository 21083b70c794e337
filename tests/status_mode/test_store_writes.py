"""The promises of every store of status-table mode about writes: one suite, run on each store."""

from dataclasses import asdict
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select, update

from inbox import SqlStore, Status, Verdict
from inbox._status_mode.stores import HeldRecord, Store
from inbox.schema import tables
from tests.support.database import Database
from tests.support.on_servers import each_on
from tests.support.status_mode.stores import (
    CONSUMER,
    DIGESTS,
    ENDS,
    LEASE,
    NAMES,
    PAYLOAD,
    change,
    end,
    held,
    request,
    stored,
)

pytestmark = pytest.mark.mysql

every_end = each_on(
    "sqlite",
    "status",
    [(status,) for status in ENDS],
    [(Status.CONSUMED,)],
    among=NAMES,
    fixture="place",
)


@every_end
def test_a_last_write_whose_answer_was_lost_is_recognised(store: Store, status: Status) -> None:
    """Ending a message again in the same way is accepted and counted once; another end is rejected."""
    claimed = store.claim(request())
    before = end(store, claimed, status)
    assert end(store, claimed, status) == before
    other = Status.DEAD if status is Status.CONSUMED else Status.CONSUMED
    assert not store.write(held(claimed), change(status=other, finished=1, error="other"))
    assert stored(store) == before


FIELDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "finished": ({"finished": 1}, {"attempts_finished": 1}),
    "started": ({"started": 2}, {"attempts_started": 3}),
    "given back": ({"started": -1}, {"attempts_started": 0}),
    "error": ({"error": "né"}, {"error": "né"}),
    "payload": ({"payload": PAYLOAD}, {"payload": PAYLOAD}),
    "no payload": ({"payload": b""}, {"payload": b""}),
    "steps": ({"steps": '{"é":1}'}, {"steps": '{"é":1}'}),
    "history": ({"history": "[1]"}, {"history": "[1]"}),
    "pending_step": ({"pending_step": "charge"}, {"pending_step": "charge"}),
    "undos": ({"undos": 2}, {"undos": 2}),
    "all that a step writes": (
        {"steps": "{}", "undos": 1, "pending_step": "x"},
        {"steps": "{}", "undos": 1, "pending_step": "x"},
    ),
}


def test_a_write_changes_what_it_names(store: Store) -> None:
    """Each field of a change sets its own field of the record, and no other field changes."""
    for key, (fields, expected) in FIELDS.items():
        claimed = store.claim(request(key, digest=DIGESTS[0]))
        before = asdict(stored(store, key))
        assert store.write(held(claimed), change(**fields))
        assert asdict(stored(store, key)) == before | expected


def test_what_is_not_named_is_kept(store: Store) -> None:
    """A change keeps the fields that it does not name."""
    claimed = store.claim(request())
    fields = {
        "payload": PAYLOAD,
        "error": "e",
        "steps": "{}",
        "history": "[]",
        "pending_step": "s",
        "undos": 1,
    }
    assert store.write(held(claimed), change(**fields))
    assert store.write(held(claimed), change(lease=LEASE))
    assert fields.items() <= asdict(stored(store)).items()


def test_a_pending_step_is_taken_back_by_the_empty_text(store: Store) -> None:
    """`pending_step=""` clears the pending step; then the message can be taken over again."""
    claimed = store.claim(request(lease=0.0))
    assert store.write(held(claimed), change(pending_step="charge"))
    assert store.write(held(claimed), change(pending_step=""))
    assert stored(store).pending_step is None
    assert store.claim(request()).verdict is Verdict.NEW


def test_a_lease_is_counted_from_the_write_by_the_stores_clock(store: Store) -> None:
    """A new lease counts from the moment of the write, by the store's clock, whatever was left of the old
    one."""
    claimed = store.claim(request())
    changed = stored(store).updated_at
    for seconds in (3_600.0, 0.0, 600.5):
        before = store.now()
        assert store.write(held(claimed), change(lease=seconds))
        until, after = stored(store).lease_until, store.now()
        assert until is not None
        assert before <= until - timedelta(seconds=seconds) <= after
    assert stored(store).updated_at == changed


@every_end
def test_an_end_ends_the_lease(store: Store, status: Status) -> None:
    """A message that has ended has no lease, and its record says when it ended."""
    claimed = store.claim(request())
    before = store.now()
    record = end(store, claimed, status)
    assert (record.status, record.lease_until, record.attempts_finished) == (status, None, 1)
    assert before <= record.updated_at <= store.now()


def test_only_the_newest_token_writes(store: Store) -> None:
    """After a takeover every kind of write with the old token is rejected and changes nothing; so is a write
    with a token that was never issued, or with another message's token."""
    first = store.claim(request(lease=0.0))
    second = store.claim(request())
    other = store.claim(request("b"))
    before = stored(store)
    wrong = [held(first), HeldRecord(CONSUMER, "a", second.record.token + 1), HeldRecord(CONSUMER, "a", 0)]
    for token in (*wrong, HeldRecord(CONSUMER, "a", other.record.token)):
        assert not store.write(token, change(lease=LEASE))
        assert not store.write(token, change(steps="{}", undos=1))
        for status, fields in ENDS.items():
            assert not store.write(token, change(status=status, **fields))
        assert not store.write(token, change(status=Status.FAILED, started=-1))
        assert not store.delete(token, list(Status))
    assert stored(store) == before
    assert store.write(held(second), change(lease=LEASE))


def test_a_claim_that_a_failover_lost(postgres: Database) -> None:
    """Its token is not drawn again: on the server that has lost the claim, the next one gets another."""
    store, status = SqlStore(engine := postgres.engine()), tables().status
    end(store, store.claim(request()), Status.FAILED)
    with engine.begin() as connection:  # as after the clock has gone back
        connection.execute(update(status).values(token=status.c.token + 10**12))
        saved = connection.execute(select(status)).mappings().one()
    lost = store.claim(request())
    with engine.begin() as connection:
        connection.execute(update(status).values(**saved))
    successor = store.claim(request())
    assert (lost.verdict, successor.verdict) == (Verdict.NEW, Verdict.NEW)
    assert not store.write(held(lost), change(steps="{}", undos=1))
    assert store.write(held(successor), change(lease=LEASE))


def test_a_write_says_which_statuses_it_is_for(store: Store) -> None:
    """A write is rejected unless the record's status is one of those it names: `consuming` by default."""
    claimed = store.claim(request())
    failed = end(store, claimed, Status.FAILED)
    assert not store.write(held(claimed), change(lease=LEASE))
    assert not store.write(held(claimed), change(error="x"), [Status.DEAD, Status.HALTED])
    assert stored(store) == failed
    assert store.write(held(claimed), change(error="x"), [Status.DEAD, Status.FAILED])
    assert stored(store).error == "x"


def test_nothing_is_written_where_nothing_is(store: Store) -> None:
    """A write or deletion for a missing record is rejected and creates none."""
    nothing = HeldRecord(CONSUMER, "a", 1)
    assert not store.write(nothing, change(lease=LEASE))
    assert not store.write(nothing, change(status=Status.CONSUMED, finished=1))
    assert not store.delete(nothing, list(Status))
    assert store.find(CONSUMER, "a") is None
    assert store.list(None, None, 10) == []


def test_a_deletion_is_fenced_like_a_write(store: Store) -> None:
    """Only the record's own token deletes it, and only in the statuses named; then the message is as new as
    any other."""
    claimed = store.claim(request())
    dead = end(store, claimed, Status.DEAD)
    assert not store.delete(held(claimed), [Status.CONSUMED, Status.CONSUMING])
    assert stored(store) == dead
    assert store.delete(held(claimed), [Status.DEAD])
    assert store.find(CONSUMER, "a") is None
    anew = store.claim(request())
    assert (anew.verdict, anew.record.attempts_started) == (Verdict.NEW, 1)
    assert not store.write(held(claimed), change(lease=LEASE))
    assert not store.delete(held(claimed), list(Status))
    assert stored(store).token == anew.record.token
