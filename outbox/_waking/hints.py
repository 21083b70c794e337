"""The content of a wake-up: which buckets were written, so that only the relays that own them look.

A hint is a set of words: "7" means that bucket 7 has a new message, "+7" that it has a new delayed one. "*"
means any bucket, and "+" means chores for every relay: the relays or the paused topics have changed.
"""

from collections.abc import Iterable, Sequence

from sqlalchemy import Connection

from inbox_outbox_base.databases.registry import notifying

Hint = frozenset[str]

ANY, CHORES = "*", "+"
EVERYTHING: Hint = frozenset({ANY, CHORES})
_LARGEST = 7_999
"""The most bytes in a payload: PostgreSQL takes fewer than 8,000."""


def word(bucket: int, *, is_delayed: bool) -> str:
    """The word for a new message of a bucket."""
    return f"{CHORES}{bucket}" if is_delayed else f"{bucket}"


def payload_of(hint: Iterable[str], schema: str | None, origin: str) -> str:
    """The payload of the notification for a hint."""
    end = f" {origin} {schema or ''}"
    payload = ",".join(sorted(hint)) + end
    return payload if len(payload.encode()) <= _LARGEST else ",".join(sorted(EVERYTHING)) + end


def notify(connection: Connection, hint: Iterable[str], schema: str | None) -> None:
    """Wake relays when the transaction on this connection commits, if its database has notifications."""
    server = notifying(connection.dialect.name)
    if server is not None:
        server.notify(connection, payload_of(hint, schema, "-"))


class Subscription:
    """Which notifications are meant for a relay.

    Args:
        schema: the schema of the relay's tables.
        origin: of the commits that wake the relay inside its process; their notifications are ignored.
    """

    def __init__(self, schema: str | None, origin: str) -> None:
        self._schema = schema or ""
        self._origin = origin

    def hint(self, payload: str) -> Hint:
        """The hint of a notification; empty if it is not meant for this relay."""
        words, *rest = payload.split(" ", 2)
        is_meant = len(rest) == 2 and rest[0] != self._origin and rest[1] == self._schema
        return frozenset(words.split(",")) if is_meant else frozenset()


def wanted(buckets: Sequence[int]) -> tuple[Hint, Hint]:
    """The words that tell these buckets' owner to look, and the words that tell it to do chores."""
    return frozenset({ANY, *map(str, buckets)}), frozenset({CHORES, *(f"{CHORES}{each}" for each in buckets)})
