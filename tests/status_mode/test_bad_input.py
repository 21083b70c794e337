"""Invalid input to status-table mode raises one clear error, before anything is written."""

import json
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
import redis
import redis.asyncio
from sqlalchemy import StaticPool, create_engine, create_mock_engine
from sqlalchemy.dialects import registry
from sqlalchemy.ext.asyncio import create_async_engine

from examples.embedded_postgres import free_port
from inbox import Backoff, Claim, EventKind, RedisStore, SqlStore, Status, StatusInbox, Verdict, is_transient
from inbox._status_mode.stores import Store
from inbox.errors import InvalidKey, InvalidOption, StoreUnreachable, TablesMissing, UnsupportedDatabase
from tests.support.cases import case
from tests.support.database import Database
from tests.support.on_servers import on
from tests.support.status_mode.stores import Failed, deliver, status_inbox, stored

SECRET = "hunter2"  # noqa: S105 - it opens nothing
ODD = ["a\0b", "a\ud800b", "\0" * 3_000, "é🙂" * 3_000]
"""Text that not every database could store as it is."""


@pytest.fixture
def anywhere() -> Iterator[SqlStore]:
    """A store that is never used."""
    engine = create_engine("sqlite://")
    yield SqlStore(engine)
    engine.dispose()


NO_TIMES: list[Any] = [-1, float("nan"), float("inf"), "5", True, timedelta(seconds=-1)]
NO_COUNTS = [0, -1, 1.5, True, "3", None]
NO_FLAGS = [None, 0, "no"]
BAD_OPTIONS: dict[str, list[Any]] = {
    "lease": [*NO_TIMES, None, 0, 0.05],
    "max_attempts": NO_COUNTS,
    "heartbeat": NO_FLAGS,
    "max_runtime": [*NO_TIMES, 0, 0.05],
    "remember": [-1, 1.5, True, "3", None],
    "keep_payload": NO_FLAGS,
    "backoff": [5, "exponential", Backoff],
    "retention": NO_TIMES,
    "dead_retention": NO_TIMES,
    "missing_key": ["raise", None, ""],
    "unreachable": ["refuse", None, True],
    "on_event": [5, "print", [print, None]],
    "consumer": ["", "x" * 129, "é" * 65, "a\0", None, 5, b"orders"],
}


@pytest.mark.parametrize("option", BAD_OPTIONS)
def test_an_invalid_option_is_refused(anywhere: SqlStore, option: str) -> None:
    """An invalid option is rejected; the error names the option and the value."""
    for value in BAD_OPTIONS[option]:
        with case(repr(value)), pytest.raises(InvalidOption, match=rf"^{option}=") as caught:
            StatusInbox(**{"consumer": "orders", "store": anywhere, option: value})
        assert repr(value) in str(caught.value)


@pytest.mark.parametrize("option", ["first", "factor", "longest"])
def test_an_invalid_backoff_is_refused(option: str) -> None:
    """An invalid backoff is rejected; the error names its part and the value."""
    for value in NO_TIMES[:-1]:
        with case(repr(value)), pytest.raises(InvalidOption, match=rf"^{option}=") as caught:
            Backoff(**{option: value})
        assert repr(value) in str(caught.value)


def test_an_invalid_store_is_refused() -> None:
    """Anything but a store is rejected: an engine, a client, a URL."""
    values: list[Any] = [create_mock_engine("sqlite://", print), None, "redis://localhost", SqlStore]
    for value in values:
        kind = type(value).__name__
        with pytest.raises(InvalidOption, match=rf"^store={kind}"):
            StatusInbox("orders", store=value)
        with pytest.raises(InvalidOption, match=rf"^engine={kind}"):
            SqlStore(value)
        with pytest.raises(InvalidOption, match=rf"^client={kind}"):
            RedisStore(value)


def test_an_engine_with_one_connection_for_all_threads_is_refused() -> None:
    """A StaticPool is rejected: the heartbeat thread would commit rows that the application rolls back."""
    for make in (create_engine, create_async_engine):
        with pytest.raises(InvalidOption, match="engine: expected a pool other than StaticPool"):
            SqlStore(make("postgresql+psycopg://", poolclass=StaticPool))


def test_an_invalid_client_is_refused() -> None:
    """A Redis client that decodes responses is rejected, because records contain bytes, and so is one that
    waits for ever; so is an empty or otherwise invalid prefix."""
    with redis.Redis(decode_responses=True) as client, pytest.raises(InvalidOption, match="decode_responses"):
        RedisStore(client)
    with (
        redis.Redis(socket_timeout=None) as client,
        pytest.raises(InvalidOption, match="socket_timeout=None"),
    ):
        RedisStore(client)
    with redis.Redis() as client:
        for prefix in ("", None, b"inbox", 5):
            with pytest.raises(InvalidOption, match=rf"^prefix={prefix!r}"):
                RedisStore(client, prefix=prefix)  # type: ignore[arg-type]


def test_an_unknown_dialect_is_refused() -> None:
    """An unknown dialect is rejected immediately; the error names it."""
    registry.register("other", "tests.exactly_once.test_bad_input", "OtherDialect")
    with pytest.raises(UnsupportedDatabase, match=r"dialect='other'"):
        SqlStore(create_engine("other://"))


def test_missing_tables_name_the_command_that_makes_them(database: Database) -> None:
    """An empty database raises `TablesMissing`, with the table's name and the command that creates it."""
    inbox = status_inbox(SqlStore(database.engine()))
    with pytest.raises(TablesMissing, match=r"inbox_consumer.*inbox-outbox migrate"):
        deliver(inbox, lambda _: pytest.fail("ran"))


BAD_MESSAGES: dict[str, tuple[type[Exception], str, dict[str, Any]]] = {
    "empty key": (InvalidKey, r"^key=''", {"key": ""}),
    "long key": (InvalidKey, r"^key='x", {"key": "x" * 513}),
    "key with NUL": (InvalidKey, r"^key='a\\x00'", {"key": "a\0"}),
    "fraction as a key": (InvalidKey, r"^key=5", {"key": 5.5}),
    "payload that is no JSON": (InvalidOption, r"^payload", {"key": "a", "payload": object()}),
    "naive time": (InvalidOption, r"^message_time=", {"key": "a", "message_time": datetime(2026, 1, 1)}),  # noqa: DTZ001 - the mistake itself
    "time as text": (InvalidOption, r"^message_time='now'", {"key": "a", "message_time": "now"}),
}


@on("sqlite", fixture="place")
def test_an_invalid_message_is_refused(store: Store) -> None:
    """An invalid message is rejected with an error that says what is wrong; nothing runs, and nothing is
    written."""
    for name, (error, match, given) in BAD_MESSAGES.items():
        with case(name), pytest.raises(error, match=match), status_inbox(store).claim(**given):
            pytest.fail("ran")
    assert store.list(None, None, 1) == []


BAD_STEPS: dict[str, tuple[str, Callable[[Claim], Any]]] = {
    "empty name": (r"^step=''", lambda claim: claim.step("", lambda: 1)),
    "long name": (r"^step='x", lambda claim: claim.step("x" * 256, lambda: 1)),
    "name with NUL": (r"^step='a\\x00'", lambda claim: claim.step("a\0", lambda: 1)),
    "name with a surrogate": (r"^step='a\\ud800'", lambda claim: claim.step("a\ud800", lambda: 1)),
    "number as a name": (r"^step=5", lambda claim: claim.step(5, lambda: 1)),  # type: ignore[call-overload]
    "other policy": (
        r"^on_unknown='stop'",
        lambda claim: claim.step("a", lambda: 1, on_unknown="stop"),  # type: ignore[call-overload]
    ),
}


@on("sqlite", fixture="place")
def test_an_invalid_step_is_refused(store: Store) -> None:
    """An invalid step is rejected with an error that says what is wrong; it is neither called nor
    recorded."""
    inbox = status_inbox(store, max_attempts=len(BAD_STEPS) + 1)
    for name, (match, body) in BAD_STEPS.items():
        with case(name), pytest.raises(InvalidOption, match=match), inbox.claim("a") as claim:
            body(claim)
    assert stored(store).steps is None


def test_errors_payloads_and_results_may_be_any_text(store: Store) -> None:
    """An error, payload or result may contain any text: the end of the message is still recorded."""
    inbox = status_inbox(store, max_attempts=1, keep_payload=True)
    for number, odd in enumerate(ODD):
        with pytest.raises(Failed), inbox.claim(f"fails {number}", odd):
            raise Failed(odd)
        record = stored(store, f"fails {number}")
        assert (record.status, record.payload) == (Status.DEAD, odd.encode(errors="surrogatepass"))
        assert (record.error or "").startswith("Failed: ")
        assert json.loads(record.history or "")[0]["error"] == record.error
        for _ in range(2):
            with inbox.claim(number) as claim:
                if claim.is_new:
                    claim.result = [claim.step("s", lambda odd=odd: odd)]  # type: ignore[misc]
            assert claim.result == [odd]


ADDRESSES = {
    "postgresql": "postgresql+psycopg://user:{secret}@127.0.0.1:{port}/app",
    "mysql": "mysql+pymysql://user:{secret}@127.0.0.1:{port}/app",
    "redis": "redis://user:{secret}@127.0.0.1:{port}",
}


@pytest.fixture(params=ADDRESSES)
def nowhere(request: pytest.FixtureRequest) -> Iterator[Store]:
    """A store at an address where no server answers."""
    address = ADDRESSES[request.param].format(secret=SECRET, port=free_port())
    if request.param == "redis":
        with redis.Redis.from_url(address) as client:
            yield RedisStore(client)
    else:
        engine = create_engine(address)
        yield SqlStore(engine)
        engine.dispose()


def test_a_store_that_does_not_answer_is_an_error(nowhere: Store) -> None:
    """By default nothing runs if the store is unreachable: StoreUnreachable is transient, names the store and
    shows no password."""
    inbox = status_inbox(nowhere)
    with pytest.raises(StoreUnreachable, match="did not answer") as caught:
        deliver(inbox, lambda _: pytest.fail("ran"))
    assert is_transient(caught.value)
    assert type(nowhere).__name__ in str(caught.value)
    assert SECRET not in f"{caught.value!s}{caught.value!r}{nowhere!r}{inbox!r}"


def test_running_unprotected_has_to_be_asked_for(nowhere: Store) -> None:
    """With `unreachable="run"` the message runs without the store, and monitoring gets an UNPROTECTED
    event."""
    events: list[EventKind] = []
    inbox = status_inbox(nowhere, unreachable="run", on_event=lambda event: events.append(event.kind))
    claim = deliver(inbox, lambda claim: claim.step("s", lambda: 7))
    assert (claim.verdict, claim.result, claim.token) == (Verdict.NEW, 7, 0)
    assert events == [EventKind.UNPROTECTED, EventKind.STEP_DONE, EventKind.COMPLETED]
