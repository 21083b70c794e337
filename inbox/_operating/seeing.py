"""What operators have seen of status-table mode: the tokens of messages, which change whenever one is taken
or decided about, and their statuses."""

from collections.abc import Iterable
from typing import NamedTuple

from inbox._status_mode.stores import Record, Status
from inbox_outbox_base.checks import deciding, options
from inbox_outbox_base.checks.keys import Key, encode_key
from inbox_outbox_base.words.deciding import packed

RETRIED = (Status.DEAD, Status.FAILED)
"""The statuses of messages that can be retried."""
STOPPED = (Status.DEAD, Status.HALTED, Status.FAILED)
"""The statuses of messages that can be discarded."""

_KIND = "messages of status-table mode"


class SeenRecord(NamedTuple):
    """A message as it was."""

    consumer: str
    key: str
    token: int
    status: str


def pack(records: Iterable[Record]) -> str:
    """The `seen` of a listing."""
    return packed(
        _KIND, [SeenRecord(each.consumer, each.key, each.token, each.status.value) for each in records]
    )


def unpack(text: str) -> list[SeenRecord]:
    """What a listing has seen.

    Raises:
        InvalidOption: it did not come with such a listing.
    """
    parts = (str, str, deciding.BIG_INTEGER, str)
    return [SeenRecord(*each) for each in deciding.places(text, _KIND, parts)]


def is_as_seen(record: Record | None, seen: SeenRecord) -> bool:
    """Whether the message has not changed."""
    return record is not None and (record.token, record.status.value) == (seen.token, seen.status)


def checked_filter(consumer: str | None, key: Key | None, error: str | None) -> dict[str, str]:
    """What of it is given.

    Raises:
        InvalidOption, InvalidKey: a value is invalid.
    """
    given = {
        "consumer": None if consumer is None else options.consumer(consumer),
        "key": None if key is None else encode_key(key),
        "error": deciding.reason("error", error),
    }
    return {name: value for name, value in given.items() if value is not None}


def key_and_error(filters: dict[str, str]) -> tuple[str | None, str | None]:
    """The two, as a store takes them."""
    return filters.get("key"), filters.get("error")


def is_chosen(record: Record, status: Status, filters: dict[str, str]) -> bool:
    """Whether a message is in this status and matches."""
    if record.status is not status or filters.get("error", "") not in (record.error or ""):
        return False
    return all(getattr(record, name) == filters[name] for name in ("consumer", "key") if name in filters)
