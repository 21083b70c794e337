"""Records of status-table mode in Redis: one hash for each message, changed only by scripts."""

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from inbox_outbox_base.checks.extras import brought_by
from inbox_outbox_base.checks.options import MOST_ROWS
from inbox_outbox_base.errors.inbox import InvalidOption, StoreUnreachable
from inbox_outbox_base.words.incoming import Status, Verdict

from . import redis_records as hashes
from . import redis_scripts
from .records import Change, ClaimAnswer, HeldRecord, Record, Request, is_ours, judge, successor
from .redis_scripts import RedisScript
from .store import Store

if TYPE_CHECKING:
    import redis
    import redis.asyncio

    Client = redis.Redis | redis.RedisCluster | redis.asyncio.Redis | redis.asyncio.RedisCluster

T = TypeVar("T")
_HELD = (Status.CONSUMING,)
_CODES = "OOM|NOREPLICAS|MISCONF|BUSY|LOADING|MASTERDOWN|READONLY|CLUSTERDOWN|TRYAGAIN"
_NOT_NOW = re.compile(rf"^(?:ERR Error running script .*? -|-)?({_CODES}) ")
"""The answers of a server that is full or degraded begin with one of these codes of Redis' protocol. Before
Redis 7, a server puts its own words first if the error comes up inside a script."""


class RedisStore(Store):
    """Records in Redis 6 or newer, or a Redis Cluster; extra `redis`.

    A message is one key, and every claim and write is one script on that key, so decisions are as atomic as
    in a database; the time is Redis' TIME. Records expire after the inbox's retention. The store cannot
    restore what Redis loses: use ``appendonly yes`` and ``maxmemory-policy noeviction``. A failover to a
    replica that lacks the last writes can let a second handler run.

    Args:
        client: of redis-py, synchronous or (for `AsyncStatusInbox`) asynchronous, without `decode_responses`
            and with a `socket_timeout`, which newer versions of redis-py have by default.
        prefix: the prefix of all keys.

    Raises:
        InvalidOption: not such a client, or an empty prefix.
    """

    def __init__(self, client: "Client", *, prefix: str = "inbox") -> None:
        with brought_by("redis"):
            import redis
            import redis.asyncio

        asynchronous = redis.asyncio.Redis | redis.asyncio.RedisCluster
        if not isinstance(client, redis.Redis | redis.RedisCluster | asynchronous):
            raise InvalidOption(f"client={type(client).__name__}: expected a client of redis-py")
        if client.get_encoder().decode_responses:
            raise InvalidOption(
                "client: decode_responses=True: expected False, because the store reads bytes"
            )
        if _socket_timeout(client) is None:
            raise InvalidOption(
                "client: socket_timeout=None: expected a time, or a server that hangs stops all heartbeats"
            )
        if not prefix or not isinstance(prefix, str):
            raise InvalidOption(f"prefix={prefix!r}: expected some text")
        self.is_async = isinstance(client, asynchronous)
        self._client: Any = client
        self._is_cluster = not isinstance(client, redis.Redis | redis.asyncio.Redis)
        self._prefix = prefix
        self._history = object()
        self._transient = (
            redis.exceptions.ConnectionError,
            redis.exceptions.TimeoutError,
            redis.exceptions.ReadOnlyError,
            redis.exceptions.ClusterDownError,
            redis.exceptions.TryAgainError,
            redis.exceptions.OutOfMemoryError,
        )
        self._errors = redis.exceptions.RedisError
        self._no_script = redis.exceptions.NoScriptError

    def __repr__(self) -> str:
        return f"RedisStore(prefix={self._prefix!r})"

    def write(self, held: HeldRecord, change: Change, among: Iterable[Status] = _HELD) -> bool:
        if among is _HELD and change.status is Status.CONSUMED and change.steps is None:
            return self._complete(held, change) or self._has_happened(held, change)
        lease, keep = change.lease, change.forget_after
        counts = change.started, change.finished
        if self._write(held, among, change.fields(), keep, lease, *counts, expects=change.expects):
            return True
        return self._has_happened(held, change)

    def _complete(self, held: HeldRecord, change: Change) -> bool:
        given = () if change.result is None else (change.result,)
        keep = hashes.milliseconds(change.forget_after)
        name = self._name(held.consumer, held.key)
        return bool(self._run(redis_scripts.COMPLETE, name, held.token, keep, *given))

    def renew(
        self, claims: Sequence[HeldRecord], lease: float, keep: float, within: float
    ) -> Iterator[tuple[HeldRecord, float | None]]:
        # The keys are on several nodes, and a cluster's pipeline refuses EVALSHA.
        if self._is_cluster:
            yield from super().renew(claims, lease, keep, within)
            return
        change = Change(lease=lease, forget_after=keep)
        answers = self._reached(lambda: self._renewed(claims, change))
        for held, answer in zip(claims, answers, strict=True):
            renewed = self.write(held, change) if isinstance(answer, self._no_script) else answer
            yield held, lease if renewed else None

    def _renewed(self, claims: Sequence[HeldRecord], change: Change) -> Sequence[Any]:
        """In one round trip, renew the claims; for each, return whether it was renewed, or the error that
        Redis has forgotten the script."""
        # Without MULTI, which would delay all other clients for the whole round.
        pipeline = self._client.pipeline(transaction=False)
        for held in claims:
            arguments = hashes.write_arguments(
                held, (Status.CONSUMING,), {}, change.forget_after, change.lease
            )
            pipeline.evalsha(redis_scripts.WRITE.sha, 1, self._name(held.consumer, held.key), *arguments)
        answers: Sequence[Any] = self._called(pipeline.execute(raise_on_error=False))
        for answer in answers:
            if isinstance(answer, Exception) and not isinstance(answer, self._no_script):
                raise answer
        return answers

    def find(self, consumer: str, key: str) -> Record | None:
        return self._look(self._name(consumer, key), consumer, key)[1]

    def list(
        self,
        consumer: str | None,
        status: Status | None,
        limit: int,
        key: str | None = None,
        error: str | None = None,
    ) -> list[Record]:
        """As `Store.list`; reads all records, because Redis has no index of them."""
        found = [
            record
            for record in self._every(consumer)
            if status in (None, record.status)
            and key in (None, record.key)
            and (error is None or error in (record.error or ""))
        ]
        return sorted(found, key=lambda record: record.updated_at)[:limit]

    def _every(self, consumer: str | None) -> Iterator[Record]:
        for name, parts in self._ours(consumer):
            record = self._look(name, *parts)[1]
            if record is not None:
                yield record

    def _ours(self, consumer: str | None) -> Iterator[tuple[bytes, tuple[str, str]]]:
        start = f"{self._prefix}:" if consumer is None else self._name(consumer, "").decode()
        for name in set(self._names(hashes.escaped(start) + "*")):  # a scan may return a name twice
            parts = hashes.parted(name[len(self._prefix) + 1 :])
            if parts is not None:  # else another program's: its prefix begins with ours
                yield name, parts

    def age(self, seconds: float) -> None:
        """Move the times of all records into the past: see `inbox_outbox.testing.age`."""
        for name, _ in self._ours(None):
            self._run(redis_scripts.AGE, name, hashes.microseconds(seconds), hashes.milliseconds(seconds))

    def places(
        self, consumer: str | None, status: Status | None, key: str | None = None, error: str | None = None
    ) -> Sequence[HeldRecord]:
        found = self.list(consumer, status, MOST_ROWS, key, error)
        return [HeldRecord(each.consumer, each.key, each.token) for each in found]

    def delete(self, held: HeldRecord, among: Iterable[Status]) -> bool:
        name = self._name(held.consumer, held.key)
        return bool(self._run(redis_scripts.DELETE, name, held.token, hashes.listed(among)))

    def now(self) -> datetime:
        return self._look(self._name("", ""), "", "")[0]

    def _claim(self, request: Request) -> ClaimAnswer | None:
        name = self._name(request.consumer, request.key)
        now, record = self._add_or_look(name, request)
        if isinstance(record, int):
            return ClaimAnswer.first(request, record, now)
        if is_ours(record, request):
            return ClaimAnswer(verdict=Verdict.NEW, record=record, now=now)
        judgement = judge(record, now, request)
        if judgement.bury is None and judgement.verdict is not Verdict.NEW:
            return ClaimAnswer(verdict=judgement.verdict, record=record, now=now)
        values = successor(record, now, request, judgement)
        if judgement.bury is None:
            values |= {"status": Status.CONSUMING, "error": None}
            keep, lease, started = request.lease + request.retention, request.lease, 1
        else:
            keep, lease, started = request.dead_retention, None, 0
        seen = HeldRecord(record.consumer, record.key, record.token)
        if not self._write(
            seen, [record.status], values, keep, lease, started, 0, judged=hashes.judged(record)
        ):
            return None
        now, found = self._look(name, request.consumer, request.key)
        if found is None or (judgement.bury is None and found.claim != request.claim):
            return None
        return ClaimAnswer(verdict=judgement.verdict, record=found, now=now)

    @property
    def history(self) -> object:
        return self._history

    def _add_or_look(self, name: bytes, request: Request) -> tuple[datetime, Record | int]:
        """The store's clock, and either the existing record or the new record's token."""
        given = () if request.digest is None else (request.digest,)
        lease, keep = (
            hashes.microseconds(request.lease),
            hashes.milliseconds(request.lease + request.retention),
        )
        answer = self._run(redis_scripts.ADD_OR_LOOK, name, lease, keep, request.claim, request.owner, *given)
        if isinstance(answer, list):
            return hashes.time_of(answer[0]), hashes.record_of(request.consumer, request.key, answer[1])
        return hashes.time_of(answer), int(answer)

    def _look(self, name: bytes, consumer: str, key: str) -> tuple[datetime, Record | None]:
        now, flat = self._run(redis_scripts.LOOK, name)
        return hashes.time_of(now), hashes.record_of(consumer, key, flat) if flat else None

    def _write(
        self,
        held: HeldRecord,
        among: Iterable[Status],
        values: Mapping[str, Any],
        keep: float,
        lease: float | None,
        started: int,
        finished: int,
        *,
        judged: str = "",
        expects: Iterable[bytes] = (),
    ) -> bool:
        arguments = hashes.write_arguments(
            held, among, values, keep, lease, started, finished, judged, expects
        )
        return bool(self._run(redis_scripts.WRITE, self._name(held.consumer, held.key), *arguments))

    def _run(self, script: RedisScript, name: bytes, *arguments: Any) -> Any:
        try:  # normally the only call
            result = self._client.execute_command("EVALSHA", script.sha, 1, name, *arguments)
            return self._called(result) if self.is_async else result
        except self._errors:  # perhaps a failover: the connection is broken, or the script is not there
            self._history = object()
            return self._reached(lambda: self._evaluated(script, name, arguments))
        except BaseException:
            self._discard()
            raise

    def _evaluated(self, script: RedisScript, name: bytes, arguments: Sequence[Any]) -> Any:
        try:
            return self._called(self._client.evalsha(script.sha, 1, name, *arguments))
        except self._no_script:
            # Redis forgets its scripts when it restarts or fails over.
            return self._called(self._client.eval(script.text, 1, name, *arguments))

    def _reached(self, call: Callable[[], T]) -> T:
        """The result of the call, after some retries."""
        try:
            return self._retrying(call, lambda error, _: self._is_transient(error))
        except self._errors as error:
            if not self._is_transient(error):
                raise
            raise StoreUnreachable(f"{self!r} did not answer: {_reason(error)}") from error
        except BaseException:
            self._discard()
            raise

    def _discard(self) -> None:
        """After an exception that is none of the client's: close the idle connections. A signal handler may
        have raised it between a command and its answer; the connection has then gone back to its pool, and
        its next command would get that answer."""
        if self.is_async:  # a task has no wait there that could be cancelled
            return
        clients = [self._client]
        if self._is_cluster:
            clients = [node.redis_connection for node in self._client.get_nodes() if node.redis_connection]
        for client in clients:
            client.connection_pool.disconnect(inuse_connections=False)
            if client.connection is not None:  # a client with a single connection
                client.connection.disconnect()

    def _is_transient(self, error: Exception) -> bool:
        if isinstance(error, self._transient):
            return True
        return isinstance(error, self._errors) and _NOT_NOW.search(str(error)) is not None

    def _called(self, result: Any) -> Any:
        if not self.is_async:
            return result
        from sqlalchemy.util import await_only  # the import needs greenlet

        return await_only(result)

    def _names(self, pattern: str) -> Iterator[bytes]:
        scan = self._client.scan_iter(match=pattern, count=1_000)
        if not self.is_async:
            yield from scan
            return
        while (name := self._called(anext(scan, None))) is not None:
            yield name

    def _name(self, consumer: str, key: str) -> bytes:
        """The length prefix shows where the consumer's name ends, whatever characters it has."""
        return f"{self._prefix}:{len(consumer)}:{consumer}:{key}".encode()


def _reason(error: Exception) -> str:
    """The error's text without the script's arguments."""
    code = _NOT_NOW.search(str(error))
    return type(error).__name__ if code is None else code[1]


def _socket_timeout(client: Any) -> float | None:
    """Seconds that a call waits for an answer; None: no limit."""
    import redis.connection

    holder = next(
        (found for name in ("connection_pool", "nodes_manager") if (found := getattr(client, name, None))),
        client,
    )
    default = inspect.signature(redis.connection.AbstractConnection).parameters["socket_timeout"].default
    timeout: float | None = getattr(holder, "connection_kwargs", {}).get("socket_timeout", default)
    return timeout
