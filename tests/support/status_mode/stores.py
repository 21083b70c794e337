"""Every kind of store of status-table mode, and helpers for its tests."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any, NoReturn
from uuid import uuid4

import redis
from sqlalchemy import create_engine, delete

from inbox import Claim, RedisStore, SqlStore, Status, StatusInbox
from inbox._status_mode.stores import Change, ClaimAnswer, HeldRecord, Record, Request, Store
from inbox.schema import tables
from tests import servers
from tests.support.compiled import SHARED
from tests.support.database import dispose

NAMES = (*servers.NAMES, "redis")
CONSUMER = "orders"
LEASE = 60.0
KEPT = 3_600.0
PAYLOAD = b"\x00\xff payload"
DIGESTS = (b"1" * 16, b"2" * 16)
ENDS: dict[Status, dict[str, Any]] = {
    Status.CONSUMED: {"finished": 1, "result": '{"n":1}'},
    Status.FAILED: {"finished": 1, "error": "no"},
    Status.DEAD: {"finished": 1, "error": "no"},
    Status.HALTED: {"finished": 1, "error": "unknown", "pending_step": "charge"},
}
"""How a claim can end, and what is written then."""

# A writer of SQLite waits for the other 31 of them.
_OPTIONS: dict[str, dict[str, Any]] = {"sqlite": {"connect_args": {"timeout": 30}}}


@dataclass(frozen=True, slots=True)
class Place:
    """The address of a store's records, in a form that can be passed to another process."""

    name: str
    url: str
    prefix: str = ""
    async_url: str = ""
    """The same database through an asynchronous driver."""

    @contextmanager
    def open(self) -> Iterator[Store]:
        """The store, with its own connections."""
        if self.name == "redis":
            with redis.Redis.from_url(self.url) as client:
                yield RedisStore(client, prefix=self.prefix)
        else:
            engine = create_engine(self.url, execution_options=SHARED, **_OPTIONS.get(self.name, {}))
            yield SqlStore(engine)
            dispose(engine)

    def clear(self) -> None:
        """Delete all records."""
        if self.name == "redis":
            with redis.Redis.from_url(self.url) as client:
                for name in client.scan_iter(f"{self.prefix}:*"):
                    client.delete(name)
        else:
            engine = create_engine(self.url, execution_options=SHARED)
            with engine.begin() as connection:
                connection.execute(delete(tables().status))
                connection.execute(delete(tables().consumer))
                connection.execute(delete(tables().decision))
            engine.dispose()


def new_prefix() -> str:
    """A prefix for the names of one test's records in Redis."""
    return f"test-{uuid4().hex}"


def request(key: str = "a", **others: Any) -> Request:
    """Another attempt to claim a message, by the consumer `orders` unless told otherwise."""
    given: dict[str, Any] = {
        "consumer": CONSUMER,
        "claim": uuid4().bytes,
        "owner": "worker",
        "lease": LEASE,
        "max_attempts": 3,
        "digest": None,
        "payload": None,
        "retention": KEPT,
        "dead_retention": KEPT,
    }
    return Request(key=key, **given | others)


def change(**fields: Any) -> Change:
    """A change to write."""
    return Change(**{"forget_after": KEPT} | fields)


def held(of: ClaimAnswer | Record) -> HeldRecord:
    """The values that every write of this claim repeats."""
    record = of.record if isinstance(of, ClaimAnswer) else of
    return HeldRecord(record.consumer, record.key, record.token)


def stored(store: Store, key: str = "a", consumer: str = CONSUMER) -> Record:
    """The record of a message, which must exist."""
    record = store.find(consumer, key)
    assert record is not None
    return record


def untimed(record: Record) -> dict[str, Any]:
    """A record without its times, which a store may return with slightly less than microsecond precision."""
    times = ("lease_until", "created_at", "updated_at")
    return {name: value for name, value in asdict(record).items() if name not in times}


def end(store: Store, claimed: ClaimAnswer, status: Status) -> Record:
    """End a claim in one of these ways, and return the record."""
    assert store.write(held(claimed), change(status=status, **ENDS[status]))
    return stored(store, claimed.record.key)


class Failed(Exception):
    """The handler's own error."""


def status_inbox(store: Store, **options: Any) -> StatusInbox:
    """An inbox on this store that shows verdicts, with leases that do not expire during a test."""
    fixed: dict[str, Any] = {"lease": LEASE, "heartbeat": False, "on_refusal": "return"}
    return StatusInbox(CONSUMER, store=store, **fixed | options)


def deliver(inbox: StatusInbox, body: Callable[[Claim], Any] = lambda _: None, payload: Any = None) -> Claim:
    """Deliver the message ``a`` once, to a handler that may fail; return the claim's final verdict."""
    with suppress(Failed), inbox.claim("a", payload) as claim:
        if claim.is_new:
            claim.result = body(claim)
    return claim


def fail(*_: Any) -> NoReturn:
    """A body that fails."""
    raise Failed("no")
