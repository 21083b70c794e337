"""The options of `spark.read.format("inbox")`."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from inbox_outbox_base.checks import options as inbox_options
from inbox_outbox_base.errors.inbox import InvalidOption

from .names import from_strings, names, number, plain
from .settings import WriterSettings, checked

What = Literal["keys", "ledger"]

_CONNECTION = {
    "url": "url",
    "user": "user",
    "password": "password",
    "passwordcommand": "passwordCommand",
    "fetchsize": "batchsize",
    "isolationlevel": "isolationLevel",
    "sessioninitstatement": "sessionInitStatement",
    "querytimeout": "queryTimeout",
    "locktimeout": "lockTimeout",
    "inboxschema": "inboxSchema",
}
"""Options for the connection, by the writer's names."""

_OWN = ("read", "consumer", "key", "since", "before", "rowsperpartition")
_UNUSED = {"table": "t", "key": "-", "consumer": "c"}
"""Options that the writer requires and a read does not use."""

COLUMNS = {
    "keys": "consumer string, key string, accepted_at timestamp, run string, batch bigint, part int",
    "ledger": (
        "id bigint, consumer string, run string, batch bigint, part int, parts int, rows_read bigint, "
        "rows_new bigint, rows_duplicate bigint, rows_repeated bigint, rows_dropped bigint, "
        "rows_mismatch bigint, rows_rejected bigint, rows_updated bigint, committed_at timestamp, work string"
    ),
}
"""The columns of a read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """All options of a read; sent to executors, so it contains the password, which is never shown."""

    settings: WriterSettings
    """How to connect; `batch_size` is the number of rows to fetch at a time."""
    what: What
    consumer: str | None
    """None stands for all of them."""
    key: tuple[str, ...]
    """The columns into which keys are divided."""
    since: datetime | None
    before: datetime | None
    rows: int
    """The most rows of a partition, if no rows are added meanwhile."""


def reading(options: Mapping[str, str]) -> Reading:
    """The options of a read, in any case.

    Raises:
        InvalidOption: an option is missing, unknown, or invalid.
    """
    given = {plain(name): (name, value) for name, value in options.items()}
    for lower, (name, value) in given.items():
        if lower not in _CONNECTION and lower not in _OWN:
            to_write = "; it is for writing, and a view to insert into lists its columns"
            raise InvalidOption(
                f"{name}={value!r}: no such option for reading{to_write if lower == 'dbtable' else ''}"
            )
    if "url" not in given:
        raise InvalidOption("url: missing; the session's defaults do not apply to reading")
    own = {lower: given[lower][1] for lower in _OWN if lower in given}
    what = _one_of("read", own.get("read", "keys"), ("keys", "ledger"))
    if what == "ledger" and "key" in own:
        raise InvalidOption(f"key={own['key']!r}: only with read='keys'")
    connection = {_CONNECTION[lower]: given[lower][1] for lower in _CONNECTION if lower in given}
    consumer = own.get("consumer")
    return Reading(
        settings=checked(**_UNUSED, **from_strings(connection)),
        what="keys" if what == "keys" else "ledger",
        consumer=None if consumer is None else inbox_options.consumer(consumer),
        key=_key(own["key"]) if "key" in own else (),
        since=_time("since", own.get("since")),
        before=_time("before", own.get("before")),
        rows=_rows(own.get("rowsperpartition", "100000")),
    )


def _one_of(option: str, value: str, choices: tuple[str, ...]) -> str:
    if value.lower() not in choices:
        raise InvalidOption(f"{option}={value!r}: expected one of {', '.join(choices)}")
    return value.lower()


def _key(value: str) -> tuple[str, ...]:
    found = names(value)
    taken = {column.split()[0] for column in COLUMNS["keys"].split(", ")}
    for name in found:
        if name.lower() in taken:
            raise InvalidOption(
                f"key={value!r}: a read has a column {name!r} of its own; take {name!r} from key"
            )
    if not all(found) or len({name.lower() for name in found}) < len(found):
        raise InvalidOption(f"key={value!r}: expected different names of columns")
    return found


def _time(option: str, value: str | None) -> datetime | None:
    if value is None:
        return None
    try:
        found = datetime.fromisoformat(value)
        is_one = found.tzinfo is not None and bool(found.astimezone(UTC))
    except (ValueError, OverflowError):
        is_one = False
    if not is_one:
        raise InvalidOption(f"{option}={value!r}: expected a time with its offset, like 2026-11-01T00:00:00Z")
    return found


def _rows(value: str) -> int:
    rows = number("rowsPerPartition", value)
    if rows < 1:
        raise InvalidOption(f"rowsPerPartition={rows}: expected 1 or more")
    return rows
