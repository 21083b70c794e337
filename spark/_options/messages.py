"""Messages that a write publishes to the outbox, in each partition's transaction."""

from collections.abc import Sequence
from dataclasses import dataclass

from inbox_outbox_base.checks import outbox_options
from inbox_outbox_base.errors.inbox import InvalidOption
from inbox_outbox_base.errors.outbox import InvalidMessage


@dataclass(frozen=True, slots=True)
class PerRow:
    """Publish a message for each new row: it leaves if and only if the row is applied.

    Args:
        topic: the messages' topic.
        key: the column with a message's key, which keeps the order of messages; NULL is no key. None: the
            row's key, as the inbox stores it.
        payload: a list of columns, which become a JSON object; or one column's name, whose text or bytes are
            the payload as they are. None: a JSON object of all columns.
    """

    topic: str
    key: str | None = None
    payload: str | Sequence[str] | None = None

    def __post_init__(self) -> None:
        _check_topic("PerRow", self.topic)
        if self.key is not None and (not isinstance(self.key, str) or not self.key):
            raise InvalidOption(f"PerRow(key={self.key!r}): expected the name of a column")
        if self.payload is None or (isinstance(self.payload, str) and self.payload):
            return
        names = tuple(self.payload)
        if (
            not names
            or not all(isinstance(name, str) and name for name in names)
            or len({*names}) < len(names)
        ):
            raise InvalidOption(f"PerRow(payload={self.payload!r}): expected the names of different columns")
        object.__setattr__(self, "payload", names)


@dataclass(frozen=True, slots=True)
class PerPartition:
    """Publish one message for each partition that applies new rows, with its counts.

    The payload is a JSON object of consumer, run, batch, part, rows, new, duplicate, repeated,
    dropped, mismatch, rejected and updated.

    Args:
        topic: the messages' topic.
        key: the messages' key, for their order; None is no key.
    """

    topic: str
    key: str | None = None

    def __post_init__(self) -> None:
        _check_topic("PerPartition", self.topic)
        try:
            outbox_options.key(self.key)
        except InvalidMessage as error:
            raise InvalidOption(f"PerPartition: {error}") from None


Messages = PerRow | PerPartition


def _check_topic(owner: str, topic: object) -> None:
    try:
        outbox_options.topic(topic)
    except InvalidMessage as error:
        raise InvalidOption(f"{owner}: {error}") from None
