"""Batches with payloads and times can return every verdict of a single message, on every database."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, event, select
from sqlalchemy.ext.asyncio import create_async_engine

from inbox import AsyncInbox, Inbox, Verdict
from inbox._exactly_once import accept, accept_many
from inbox.errors import InvalidKey, InvalidOption
from inbox.schema import tables
from tests.support.database import Database
from tests.support.on_servers import SYNC, on
from tests.support.status_mode.asynchronous import in_loop

pytestmark = pytest.mark.mysql

NEW, DUPLICATE, MISMATCH, TOO_OLD, IN_FLIGHT = (
    Verdict.NEW,
    Verdict.DUPLICATE,
    Verdict.MISMATCH,
    Verdict.TOO_OLD,
    Verdict.IN_FLIGHT,
)
INBOX = Inbox("billing", wait=0, retention=timedelta(hours=1))
OLD, RECENT = datetime.now(UTC) - timedelta(days=1), datetime.now(UTC)


@contextmanager
def statements(engine: Engine) -> Iterator[list[str]]:
    """The statements sent to the server inside the block."""
    sent: list[str] = []

    def note(_: Any, __: Any, statement: str, *___: Any) -> None:
        sent.append(statement)

    event.listen(engine, "before_cursor_execute", note)
    yield sent
    event.remove(engine, "before_cursor_execute", note)


@on(*SYNC)
def test_payloads_of_a_batch(migrated: Database) -> None:
    """Payload i belongs to key i: a key's first payload is stored, and a different payload for the same key
    is a MISMATCH, in the same batch, in a later batch and for a single message."""
    engine = migrated.engine()
    with engine.begin() as connection:
        assert INBOX.accept_many(
            connection, ["b", "a", "b", "b", "c"], [{"n": 1}, b"x", {"n": 1.0}, {"n": 2}, None]
        ) == [NEW, NEW, DUPLICATE, MISMATCH, NEW]
    with engine.begin() as connection:
        assert INBOX.accept_many(connection, ["a", "b", "c", "d"], [b"y", {"n": 1}, "z", "w"]) == [
            MISMATCH,
            DUPLICATE,
            DUPLICATE,
            NEW,
        ]
        assert INBOX.accept_many(connection, ["a", "b", "d"]) == [DUPLICATE] * 3
        assert INBOX.accept(connection, "b", {"n": 3}) is MISMATCH
        assert INBOX.accept(connection, "d", "w") is DUPLICATE


@on(*SYNC)
def test_times_of_a_batch(migrated: Database) -> None:
    """A message older than the retention is TOO_OLD and is not stored, unless its key was taken before; a
    recent message with the same key is taken."""
    engine = migrated.engine()
    with engine.begin() as connection:
        assert INBOX.accept(connection, "known", "x") is NEW
    with engine.begin() as connection:
        verdicts = INBOX.accept_many(
            connection,
            ["known", "old", "new", "old too", "known", "both", "both", "both", "timeless"],
            ["x", "x", "x", "x", "y", "x", "x", "y", "x"],
            message_times=[OLD, OLD, RECENT, OLD, OLD, OLD, RECENT, OLD, None],
        )
        assert verdicts == [DUPLICATE, TOO_OLD, NEW, TOO_OLD, MISMATCH, TOO_OLD, NEW, MISMATCH, NEW]
        found = connection.execute(select(tables().message.c.key)).scalars()
        assert set(found) == {"known", "new", "both", "timeless"}
        assert INBOX.accept_many(connection, ["old", "older"], message_times=[OLD, OLD]) == [TOO_OLD] * 2


def test_a_key_in_flight_beside_the_others(postgres: Database) -> None:
    """If another transaction holds one key of a batch, the other keys still get their verdicts, with payloads
    and times checked as usual."""
    engine = postgres.engine()
    with engine.begin() as connection:
        INBOX.accept(connection, "taken", "x")
    with engine.connect() as other, engine.begin() as connection:
        other.begin()
        INBOX.accept(other, "held", "x")
        keys = ["new", "held", "taken", "held", "old"]
        times = [RECENT, RECENT, RECENT, None, OLD]
        assert INBOX.accept_many(connection, keys, ["x", "y", "y", "x", "x"], message_times=times) == [
            NEW,
            IN_FLIGHT,
            MISMATCH,
            IN_FLIGHT,
            TOO_OLD,
        ]


def test_it_is_still_one_statement(migrated: Database) -> None:
    """A batch with payloads and recent times needs no more statements than keys alone."""
    engine, inbox = migrated.engine(), Inbox("billing")
    for _ in range(2):  # then the retention is stored, and the inbox knows it
        with engine.begin() as connection:
            inbox.accept_many(connection, ["warm"])
    counts = []
    for turn, given in enumerate(({}, {"payloads": ["x"] * 50, "message_times": [RECENT] * 50})):
        with engine.begin() as connection, statements(engine) as sent:
            keys = [f"{turn} {number}" for number in range(50)]
            assert inbox.accept_many(connection, keys, **given) == [NEW] * 50  # type: ignore[arg-type]
            counts.append(len(sent))
    assert counts[0] == counts[1]


@in_loop
async def test_the_same_asynchronously(postgres: Database) -> None:
    """`AsyncInbox.accept_many` takes payloads and times too."""
    engine = create_async_engine(postgres.async_url)
    inbox = AsyncInbox("billing", retention=timedelta(hours=1))
    async with engine.begin() as connection:
        assert await inbox.accept_many(
            connection, ["a", "a", "b"], ["x", "y", "x"], message_times=[None, RECENT, OLD]
        ) == [NEW, MISMATCH, TOO_OLD]
    await engine.dispose()


def test_an_invalid_batch_is_refused(postgres: Database) -> None:
    """Payloads or times that are invalid, or not as many as the keys, are rejected before anything is
    taken."""
    with postgres.engine().begin() as connection:
        with pytest.raises(InvalidOption, match="payloads: 1 for 2 keys"):
            INBOX.accept_many(connection, ["a", "b"], ["x"])
        for single in ("order-1", b"ab", {"a": 1}):
            with pytest.raises(InvalidOption, match=f"keys={type(single).__name__}"):
                INBOX.accept_many(connection, single)  # type: ignore[arg-type]
            with pytest.raises(InvalidOption, match=f"payloads={type(single).__name__}"):
                INBOX.accept_many(connection, ["a"], single)  # type: ignore[arg-type]
        with pytest.raises(InvalidOption, match="message_times: 3 for 2 keys"):
            INBOX.accept_many(connection, ["a", "b"], message_times=[None] * 3)
        with pytest.raises(InvalidOption, match="message_time"):
            INBOX.accept_many(connection, ["a"], message_times=[datetime(2026, 1, 1)])  # noqa: DTZ001
        with pytest.raises(InvalidOption, match="payload"):
            INBOX.accept_many(connection, ["a", "b"], ["x", object()])
        with pytest.raises(InvalidKey):
            INBOX.accept_many(connection, ["a", ""], ["x", "y"])
        assert INBOX.accept_many(connection, [], []) == []
        assert INBOX.accept_many(connection, ["a", "b"]) == [NEW, NEW]


def test_a_batch_that_waits_for_long(migrated: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then it is judged again which messages are too old: another delivery's row may have been purged."""
    engine, judged = migrated.engine(), list[int]()
    judge = accept.too_old

    def later(*given: Any) -> set[int]:
        judged.append(1)
        return judge(*given) if len(judged) > 1 else set()

    monkeypatch.setattr(accept_many, "too_old", later)
    monkeypatch.setattr(accept_many, "_YOUNG", -1.0)
    times = [OLD, RECENT, OLD, RECENT]
    with engine.begin() as connection:
        verdicts = INBOX.accept_many(connection, ["a", "b", "c", "c"], message_times=times)
        keys = connection.execute(select(tables().message.c.key)).scalars().all()
    assert verdicts == [TOO_OLD, NEW, TOO_OLD, NEW]
    assert sorted(keys) == ["b", "c"]
