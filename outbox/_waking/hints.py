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


def payloads(hint: Iterable[str], schema: str | None, origin: str) -> tuple[str, str]:
    """The payloads of the two notifications for a hint, to be sent in this order in one transaction.

    The second one is for relays of versions that do not know hints: they compare it with their schema.
    """
    name = schema or ""
    payload = f"{','.join(sorted(hint))} {origin} {name}"
    if len(payload.encode()) > _LARGEST:
        payload = f"{','.join(sorted(EVERYTHING))} {origin} {name}"
    return payload, name


def notify(connection: Connection, hint: Iterable[str], schema: str | None) -> None:
    """Wake relays with the transaction on this connection, if its database has notifications."""
    server = notifying(connection.dialect.name)
    if server is not None:
        for payload in payloads(hint, schema, "-"):
            server.notify(connection, payload)


class Subscription:
    """Which notifications are meant for a relay.

    Args:
        schema: that of the relay's tables.
        origin: that of commits that wake the relay inside its process, before they are notified.
    """

    def __init__(self, schema: str | None, origin: str) -> None:
        self._schema = schema or ""
        self._origin = origin
        self._is_repeated = False

    def hint(self, payload: str) -> Hint:
        """The hint of a notification; empty if it is not meant for this relay."""
        if payload == self._schema:
            # The repetition of the last one; if not, it comes from a version that does not know hints.
            is_repetition, self._is_repeated = self._is_repeated, False
            return frozenset() if is_repetition else EVERYTHING
        words, *rest = payload.split(" ", 2)
        if len(rest) < 2 or rest[1] != self._schema:
            return frozenset()
        self._is_repeated = True
        return frozenset() if rest[0] == self._origin else frozenset(words.split(","))


def wanted(buckets: Sequence[int]) -> tuple[Hint, Hint]:
    """The words that mean a look to the owner of these buckets, and those that mean chores."""
    return frozenset({ANY, *map(str, buckets)}), frozenset({CHORES, *(f"{CHORES}{each}" for each in buckets)})
