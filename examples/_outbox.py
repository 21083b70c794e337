"""Shared by the outbox's examples: an empty outbox, and a broker that only prints."""

from collections.abc import Sequence

from sqlalchemy import Engine, delete, func, select

from outbox import Accepted, Envelope, Outcome, schema


class Printer:
    """A `Publisher` that prints to the terminal, and accepts everything."""

    def send(self, batch: Sequence[Envelope]) -> list[Outcome]:
        """Print what a broker would get."""
        for message in batch:
            print(f"sent to {message.topic}: {message.payload.decode()}, key {message.key}")
        return [Accepted()] * len(batch)


def clear(engine: Engine, *topics: str) -> None:
    """Delete the messages to these topics that an earlier run has left.

    Raises:
        RuntimeError: there are messages to other topics, which an example's relay would also send.
    """
    tables = schema.tables()
    with engine.begin() as connection:
        for table in (tables.message, tables.delayed, tables.dead, tables.sent):
            connection.execute(delete(table).where(table.c.topic.in_(topics)))
        if connection.execute(select(tables.message.c.id).limit(1)).first() is not None:
            raise RuntimeError("the outbox contains other messages: run the example on another database")


def waiting(engine: Engine) -> int:
    """The number of messages not sent yet."""
    message = schema.tables().message
    with engine.connect() as connection:
        return connection.scalar(select(func.count()).select_from(message)) or 0
