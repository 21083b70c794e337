"""What the tests of relays share: publishers that record messages and answer by a script, and messages with
names.

A message is called "a1": its key is the letter, its payload the whole name. "-1" has no key.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

from sqlalchemy import Engine, Row, Table, func, select, update

from inbox_outbox_base.databases.taking_statements import clock
from outbox import (
    Accepted,
    Envelope,
    Message,
    Outbox,
    Outcome,
    Refused,
    Relay,
    Unavailable,
    Unknown,
    pause,
)
from outbox.schema import tables

ACCEPTED = Accepted()
TABLES = tables()

Answer = Callable[[Envelope], Outcome]


def accept(_: Envelope) -> Outcome:
    """Accept everything."""
    return ACCEPTED


class Script:
    """Outcomes by message: one for each time it is sent; `Accepted` when none is left."""

    def __init__(self, outcomes: Mapping[str, Sequence[Outcome]]) -> None:
        self._left = {name: list(each) for name, each in outcomes.items()}

    def __call__(self, message: Envelope) -> Outcome:
        left = self._left.get(name_of(message))
        return left.pop(0) if left else ACCEPTED


class Recorder:
    """A publisher that records the messages it was given, and those it has accepted."""

    def __init__(self, answer: Answer | Mapping[str, Any] = accept) -> None:
        self.answer = Script(answer) if isinstance(answer, Mapping) else answer
        self.batches: list[list[Envelope]] = []
        self.accepted: list[Envelope] = []

    def send(self, batch: Sequence[Envelope]) -> Iterable[Outcome]:
        """Answer each message."""
        self.batches.append([*batch])
        outcomes = [self.answer(message) for message in batch]
        self.accepted += [
            message for message, outcome in zip(batch, outcomes, strict=True) if outcome == ACCEPTED
        ]
        return outcomes

    @property
    def sent(self) -> list[Envelope]:
        """Every message, once for each time it was sent."""
        return [message for batch in self.batches for message in batch]

    @property
    def names(self) -> list[str]:
        """The names of the messages in `sent`."""
        return names_of(self.sent)

    def of(self, key: str) -> list[str]:
        """The names of the accepted messages of this key."""
        return [name_of(message) for message in self.accepted if message.key == key]


class AsyncRecorder(Recorder):
    """`Recorder` for an `AsyncRelay`."""

    async def send(self, batch: Sequence[Envelope]) -> Iterable[Outcome]:  # type: ignore[override]
        """Answer each message."""
        return super().send(batch)


class Ordered(Recorder):
    """A publisher that keeps the order of each key itself."""

    ordered = True


class Timed(Recorder):
    """A publisher that declares how long a send can take, in seconds."""

    timeout: ClassVar[float] = 5


def name_of(message: Envelope | Row[Any]) -> str:
    """The name that `publish` was given."""
    return bytes(message.payload).decode()


def names_of(messages: Iterable[Envelope | Row[Any]]) -> list[str]:
    return [name_of(message) for message in messages]


def messages(names: Iterable[str], topic: str = "orders", **options: Any) -> list[Message]:
    """Messages with these names."""
    return [
        Message(topic, name.encode(), None if name.startswith("-") else name[0], **options) for name in names
    ]


def publish(engine: Engine, *names: str, topic: str = "orders", **options: Any) -> list[str]:
    """Commit messages with these names; return their ids."""
    with engine.begin() as connection:
        return Outbox().publish_many(connection, messages(names, topic, **options))


def due_unsent(engine: Engine, *names: str, hours: float, ago: float) -> datetime:
    """Publish messages with a delay of `hours` that ended `ago` hours ago, and that were not sent because
    their topic is paused; return the time when they were due."""
    due = due_unmoved(engine, *names, hours=hours, ago=ago)
    pause(engine)
    relay(engine, Recorder())
    return due


def due_unmoved(engine: Engine, *names: str, hours: float, ago: float) -> datetime:
    """The same without a relay."""
    publish(engine, *names, delay=3_600)
    with engine.begin() as connection:
        due: datetime = connection.execute(clock()).scalar_one() - timedelta(hours=ago)
        past = {"available_at": due, "created_at": due - timedelta(hours=hours)}
        connection.execute(update(TABLES.delayed).values(past))
    return due


def relay(engine: Engine, publisher: Any, **options: Any) -> int:
    """Relay everything that can be sent, with a new relay."""
    return Relay(engine, publisher, **options).run_once()


def in_every_state(engine: Engine) -> None:
    """One delayed and one dead message, one in each other state, and one behind each message that blocks its
    key, all of the topic "orders"."""
    publish(engine, "d1", delay=3_600)
    publish(engine, "x1")
    relay(engine, Recorder({"x1": [Refused("never")]}))
    publish(engine, "w1", "w2", "u1", "u2", "h1", "h2")
    outcomes: dict[str, Outcome] = {
        "w1": Unavailable("full", 3_600.0),
        "u1": Unknown("silence"),
        "h1": Refused("no"),
    }
    relay(engine, Recorder(lambda message: outcomes[name_of(message)]), after_dead="hold")


def waiting(engine: Engine) -> dict[str, Row[Any]]:
    """The messages in the outbox, by name, in the order in which they were published."""
    return _rows(engine, TABLES.message, TABLES.message.c.sequence)


def dead(engine: Engine) -> dict[str, Row[Any]]:
    """The dead letters, by name."""
    return _rows(engine, TABLES.dead, TABLES.dead.c.id)


def count(engine: Engine, table: Table) -> int:
    """The number of rows in a table."""
    with engine.connect() as connection:
        return connection.execute(select(func.count()).select_from(table)).scalar_one()


def left(engine: Engine, topic: str) -> int:
    """The number of messages of a topic in the outbox."""
    of_topic = TABLES.message.c.topic == topic
    with engine.connect() as connection:
        statement = select(func.count()).select_from(TABLES.message).where(of_topic)
        return connection.execute(statement).scalar_one()


def let_backoffs_end(engine: Engine) -> None:
    """Let the delay of messages that back off be over."""
    past = datetime.now(UTC) - timedelta(days=1)
    later = TABLES.message.c.retry_at.is_not(None)
    with engine.begin() as connection:
        connection.execute(update(TABLES.message).where(later).values(retry_at=past))


def let_records_end(engine: Engine) -> None:
    """Let the time be over for which records of sent messages are kept."""
    with engine.begin() as connection:
        connection.execute(update(TABLES.sent).values(keep_until=TABLES.sent.c.created_at))


def let_leases_end(engine: Engine) -> None:
    """Expire the leases of relays that have died."""
    past = datetime.now(UTC) - timedelta(days=1)
    with engine.begin() as connection:
        connection.execute(update(TABLES.relay).values(lease_until=past))


def _rows(engine: Engine, table: Table, order: Any) -> dict[str, Row[Any]]:
    with engine.connect() as connection:
        return {name_of(row): row for row in connection.execute(select(table).order_by(order))}


def marks(engine: Engine) -> dict[int, int]:
    """The stored marks of the buckets; no message is at or below the mark of its bucket."""
    c = TABLES.bucket.c
    with engine.connect() as connection:
        found = connection.execute(select(c.bucket, c.mark).where(c.mark.is_not(None))).all()
        below = connection.execute(
            select(TABLES.message.c.id)
            .join(TABLES.bucket, c.bucket == TABLES.message.c.bucket)
            .where(TABLES.message.c.sequence <= c.mark)
        ).all()
    assert not below
    return {row.bucket: row.mark for row in found}
