"""What operators see first: messages whose send has failed."""

from typing import Any

import pytest
from sqlalchemy import Engine, event, text

import outbox
from outbox import Refused, Unavailable
from outbox.errors import InvalidOption
from tests.support.database import Database
from tests.support.outbox_publishers import Recorder, in_every_state, publish, relay


@pytest.fixture
def engine(migrated: Database) -> Engine:
    return migrated.engine()


def test_peek_with_errors_first(engine: Engine) -> None:
    """With `errors_first`, failed and held messages come before the others, and both in the order in which
    they leave; also of one topic or key, up to the limit, or among the oldest. A message that an operator has
    sent again stays among the failed."""
    outbox.pause(engine, "mail")
    publish(engine, "a1", topic="mail")
    in_every_state(engine)
    assert outbox.peek(engine)[0].key == "a"
    shown = [(each.key, each.state) for each in outbox.peek(engine, errors_first=True)]
    failed, others = shown[:3], shown[3:]
    assert failed == [("w", "waiting"), ("u", "unknown"), ("h", "held")]
    assert [key for key, _ in others] == ["a", "w", "u", "h"]
    assert {state for _, state in others} == {"pending"}
    for limit in (1, 3, 4):
        found = outbox.peek(engine, limit, errors_first=True)
        assert [(each.key, each.state) for each in found] == shown[:limit]
    found = outbox.peek(engine, topic="orders", errors_first=True)
    assert [each.key for each in found] == ["w", "u", "h", "w", "u", "h"]
    of_key = outbox.peek(engine, key="h", errors_first=True)
    assert [each.state for each in of_key] == ["held", "pending"]
    assert [each.key for each in outbox.peek(engine, topic="mail", errors_first=True)] == ["a"]
    held = [outbox.peek(engine, state="held", within=each) for each in (1, 100)]
    assert [len(each) for each in held] == [engine.dialect.name == "postgresql", 1]
    outbox.retry(engine, found[0].id)
    assert [each.key for each in outbox.peek(engine, 3, errors_first=True)] == ["w", "u", "h"]
    with pytest.raises(InvalidOption, match="errors_first=True, state='dead': expected one of the two"):
        outbox.peek(engine, state="dead", errors_first=True)


def test_what_errors_first_has_seen(engine: Engine) -> None:
    """`errors_first` and `error` go together, and a bulk decision takes what such a listing has seen."""
    in_every_state(engine)
    (full,) = outbox.peek(engine, topic="orders", error="full", errors_first=True)
    assert (full.key, full.state) == ("w", "waiting")
    (behind,) = [each.id for each in outbox.peek(engine, key="w") if each.state == "pending"]
    seen = outbox.peek(engine, 4, errors_first=True)
    assert (seen[-1].id, seen[-1].state) == (behind, "pending")
    done = outbox.drop_all(engine, "pending", seen=seen.seen)
    assert (done, done.changed) == (1, 0)
    assert [each.id for each in outbox.peek(engine, key="w")] == [full.id]


def test_failed_messages_are_found_by_an_index(postgres: Database) -> None:
    """On PostgreSQL, `errors_first` finds failed messages among many others without reading these."""
    engine = postgres.engine()
    publish(engine, "w1", "h1")
    relay(engine, Recorder({"w1": [Unavailable("full", 60.0)], "h1": [Refused("no")]}), after_dead="hold")
    with engine.begin() as connection:
        connection.execute(
            text(
                "INSERT INTO outbox_message (bucket, id, topic, payload, content_type) "
                "SELECT n % 64, n::text, 'orders', 'x', 'text/plain' FROM generate_series(1, 20000) n"
            )
        )
        connection.execute(text("ANALYZE outbox_message"))
    asked: list[tuple[str, Any]] = []

    @event.listens_for(engine, "before_cursor_execute")
    def note(_: Any, __: Any, statement: str, parameters: Any, *___: Any) -> None:
        if "outbox_message" in statement and not statement.startswith("EXPLAIN"):
            asked.append((statement, parameters))

    assert [each.key for each in outbox.peek(engine, 2, topic="orders", errors_first=True)] == ["w", "h"]
    [(statement, parameters)] = [each for each in asked if "attempts >" in each[0]]
    with engine.connect() as connection:
        plan = "\n".join(connection.exec_driver_sql(f"EXPLAIN {statement}", parameters).scalars())
    assert "outbox_message_bucket" in plan
    assert "Seq Scan" not in plan
