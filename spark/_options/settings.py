"""A writer's options, checked before anything is read or written."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Literal

from sqlalchemy import URL, Executable

from inbox_outbox_base.checks import options as inbox_options
from inbox_outbox_base.checks.key_times import FORMS, KeyTime
from inbox_outbox_base.checks.retention import Retention
from inbox_outbox_base.databases.results import NEW_ROWS, Append, Results, Statements, Upsert
from inbox_outbox_base.errors.inbox import InvalidOption

from .messages import Messages, PerPartition, PerRow
from .url import jdbc_or_sqlalchemy

Inbox = Literal["rows", "table"]
Ledger = Literal["verify", "trust", "off"]
Atomicity = Literal["partition", "job"]
NullKeys = Literal["error", "drop"]
Mismatches = Literal["count", "error"]
BadRows = Literal["fail", "table"]
AskedPassword = Callable[[], str] | tuple[str, ...]
"""A function that returns a password, or a command that prints it."""

ISOLATION_LEVELS = {
    "READ_COMMITTED": "READ COMMITTED",
    "REPEATABLE_READ": "REPEATABLE READ",
    "SERIALIZABLE": "SERIALIZABLE",
}
LONGEST_RUN = 64
"""The longest run name, in bytes of UTF-8; a streaming query adds its own id."""

_STAND_INS: dict[str, Any] = {"url": "postgresql://host/database", "table": "t", "key": "-", "consumer": "c"}
"""Valid values of the required options; nobody has a column with this name as a key."""

_TEMPORARY = re.compile(rf"{NEW_ROWS}(_\d+)?|inbox_keys", re.IGNORECASE)
_TOO_WEAK = ("NONE", "READ_UNCOMMITTED")


@dataclass(frozen=True, slots=True)
class Into:
    """A target, and the results that go into it."""

    table_schema: str | None
    table: str | None
    results: Results


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterSettings:
    """All options of a task; sent to executors, so it contains the password, which is never shown."""

    url: URL
    password: AskedPassword | None = field(repr=False)
    """Gives the password, if it is not in the URL."""
    table: str | None
    table_schema: str | None
    key: tuple[str, ...]
    consumer: str
    results: Results
    """What to do with new rows; with several targets, for the first."""
    more: tuple["Into", ...]
    """The other targets."""
    inbox: Inbox
    outbox: Messages | None
    run: str | None
    batch: int
    ledger: Ledger
    atomicity: Atomicity
    null_keys: NullKeys
    digest: tuple[str, ...]
    """The columns whose content is compared; empty if none is."""
    mismatches: Mismatches
    bad_rows: BadRows
    batch_size: int
    num_partitions: int | None
    max_connections: int | None
    isolation_level: str | None
    session_init_statement: str | None
    query_timeout: float
    lock_timeout: float
    memory: int
    inbox_schema: str | None
    retention: Retention | None
    """How long the consumer's keys are kept; None for the stored time."""
    key_time: KeyTime | None
    """The form of keys that name their time."""
    before: tuple[str | Executable, ...]
    """Statements for the driver, before the tasks."""
    after: tuple[str | Executable, ...]
    """The same, after them."""

    @property
    def target(self) -> str:
        """The table's name, as ``name`` or ``schema.name``."""
        return ".".join(part for part in (self.table_schema, self.table) if part)

    @property
    def for_tasks(self) -> "WriterSettings":
        """The same without what only the driver needs."""
        return replace(self, before=(), after=())

    @property
    def compared(self) -> tuple[str, ...]:
        """The columns by which a partition is recognised."""
        return tuple(dict.fromkeys((*self.key, *self.digest)))

    @property
    def targets(self) -> list["WriterSettings"]:
        """The settings for each target, in their order."""
        others = (
            replace(self, table_schema=each.table_schema, table=each.table, results=each.results, more=())
            for each in self.more
        )
        return [replace(self, more=()), *others]


def checked(
    *,
    url: object,
    table: object,
    key: object,
    consumer: object,
    results: object = None,
    inbox: object = "rows",
    outbox: object = None,
    user: object = None,
    password: object = None,
    run: object = None,
    batch: object = 0,
    ledger: object = "verify",
    atomicity: object = "partition",
    null_keys: object = "error",
    digest: object = None,
    mismatches: object = "count",
    bad_rows: object = "fail",
    batch_size: object = 20_000,
    num_partitions: object = None,
    max_connections: object = None,
    isolation_level: object = None,
    session_init_statement: object = None,
    query_timeout: object = 0,
    lock_timeout: object = 30,
    memory: object = 64 * 2**20,
    inbox_schema: object = None,
    retention: object = None,
    key_time: object = None,
    before: object = (),
    after: object = (),
) -> WriterSettings:
    """The settings for these options.

    Raises:
        InvalidOption: an option is invalid; the message names it and its value, but never a password.
    """
    first, *more = _targets(table, results)
    asked = _asked(password)
    checked_key = _key(_names("key", key), first.results)
    for each in (first, *more):
        _check_versions(checked_key, each.results)
    return WriterSettings(
        url=jdbc_or_sqlalchemy(url, user, None if asked else password),
        password=asked,
        table=first.table,
        table_schema=first.table_schema,
        key=checked_key,
        consumer=inbox_options.consumer(consumer),  # type: ignore[arg-type]  # it checks that
        results=first.results,
        more=tuple(more),
        inbox=_inbox(inbox, [each.results for each in (first, *more)], ledger),
        outbox=_outbox(outbox, inbox, ledger),
        run=None if run is None else _run(run),
        batch=_whole("batch", batch, 0),
        ledger=_one_of("ledger", ledger, ("verify", "trust", "off")),
        atomicity=_one_of("atomicity", atomicity, ("partition", "job")),
        null_keys=_one_of("null_keys", null_keys, ("error", "drop")),
        digest=() if digest is None else _digest(digest, inbox),
        mismatches=_mismatches(mismatches, digest),
        bad_rows=_bad_rows(bad_rows, first.results, inbox),
        batch_size=_whole("batch_size", batch_size, 1),
        num_partitions=None if num_partitions is None else _whole("num_partitions", num_partitions, 1),
        max_connections=None if max_connections is None else _whole("max_connections", max_connections, 1),
        isolation_level=_isolation(isolation_level),
        session_init_statement=_text_or_none("session_init_statement", session_init_statement),
        query_timeout=_seconds("query_timeout", query_timeout),
        lock_timeout=_seconds("lock_timeout", lock_timeout),
        memory=_whole("memory", memory, 2**20),
        inbox_schema=_text_or_none("inbox_schema", inbox_schema),
        retention=None if retention is None else _retention(retention),
        key_time=_key_time(key_time, inbox),
        before=_statements("before", before),
        after=_after(after, ledger),
    )


def check_given(options: Mapping[str, Any]) -> None:
    """Check these options before the session is known, which may supply the missing ones.

    Raises:
        InvalidOption: as `checked`.
    """
    checked(**{**_STAND_INS, **options})


def _asked(value: object) -> AskedPassword | None:
    if callable(value):
        return value
    is_command = isinstance(value, list | tuple) and value and all(isinstance(part, str) for part in value)
    return tuple(value) if is_command else None  # type: ignore[arg-type]


def _targets(table: object, results: object) -> list[Into]:
    """The targets and their results; `table` is the table of a target that names none."""
    if not isinstance(results, list | tuple):
        only = _results(results)
        return [Into(*_table(getattr(only, "table", None) or table, only), only)]
    if not results or not all(isinstance(each, Append | Upsert) for each in results):
        raise InvalidOption(f"results={results!r}: in a list, expected Append(...) and Upsert(...)")
    if sum(each.table is None for each in results) > 1:
        raise InvalidOption(f"table={table!r}, results={results!r}: expected one table for each target")
    return [Into(*_table(each.table or table, each), each) for each in results]


def _results(value: object) -> Results:
    if value is None:
        return Append()
    if isinstance(value, Append | Upsert | Statements) or (callable(value) and not isinstance(value, type)):
        if callable(value) and not inbox_options.acts_when_called(value):
            raise InvalidOption(
                f"results={value!r}: it is asynchronous, or has a yield, so a call would do nothing"
            )
        return value
    raise InvalidOption(
        f"results={value!r}: expected Append(), Upsert(...), a list of these, Statements(...) or a function"
    )


def _key(key: tuple[str, ...], how: Results) -> tuple[str, ...]:
    """The key; if an Upsert has the same key, each version is a row of its own."""
    is_updated = isinstance(how, Upsert) and how.explode is None and set(key) == set(how.key)
    return (*key, how.version) if isinstance(how, Upsert) and is_updated else key


def _check_versions(key: tuple[str, ...], results: Results) -> None:
    if isinstance(results, Upsert) and set(key) <= set(results.key):
        raise InvalidOption(
            f"key={key!r}, Upsert(key={results.key!r}, version={results.version!r}): each key is taken once, "
            f"so newer versions would be ignored; take each version, with key={(*key, results.version)!r}"
        )


def _inbox(value: object, targets: list[Results], ledger: object) -> Any:
    if value == "table" and not isinstance(targets[0], Append | Upsert):
        raise InvalidOption(
            "inbox='table': only for Append and Upsert; others have no table whose key could be the inbox"
        )
    if value == "table" and (len(targets) > 1 or getattr(targets[0], "explode", None) is not None):
        raise InvalidOption(
            f"inbox='table', results={targets!r}: only for one target without explode; others need to know "
            "which rows are new, and the table does not tell"
        )
    if value == "table" and ledger == "off":
        raise InvalidOption(
            "inbox='table', ledger='off': only the ledger knows what a lost COMMIT has written"
        )
    return _one_of("inbox", value, ("rows", "table"))


def _outbox(value: object, inbox: object, ledger: object) -> Messages | None:
    if value is not None and not isinstance(value, PerRow | PerPartition):
        raise InvalidOption(f"outbox={value!r}: expected PerRow(...) or PerPartition(...)")
    if isinstance(value, PerRow) and inbox == "table":
        raise InvalidOption(f"outbox={value!r}, inbox='table': the table does not tell which rows are new")
    if isinstance(value, PerPartition) and ledger == "off":
        raise InvalidOption(
            f"outbox={value!r}, ledger='off': only the ledger knows whether a lost COMMIT has published"
        )
    return value


def _digest(value: object, inbox: object) -> tuple[str, ...]:
    if inbox == "table":
        raise InvalidOption(f"digest={value!r}, inbox='table': digests are kept in inbox rows")
    return _names("digest", value)


def _key_time(value: object, inbox: object) -> Any:
    if value is not None and inbox == "table":
        raise InvalidOption(
            f"key_time={value!r}, inbox='table': no purge forgets the keys of a table of yours"
        )
    return None if value is None else _one_of("key_time", value, tuple(FORMS))


def _mismatches(value: object, digest: object) -> Any:
    if value == "error" and digest is None:
        raise InvalidOption("mismatches='error': needs digest, the columns to compare")
    return _one_of("mismatches", value, ("count", "error"))


def _bad_rows(value: object, results: Results, inbox: object) -> Any:
    if value == "table" and not isinstance(results, Append | Upsert):
        raise InvalidOption(
            "bad_rows='table': only for Append and Upsert; of others nobody knows which row they refuse"
        )
    if value == "table" and inbox == "table":
        raise InvalidOption(
            "bad_rows='table', inbox='table': the table does not tell which keys are taken, and so which of "
            "these rows are still to be written"
        )
    return _one_of("bad_rows", value, ("fail", "table"))


def _table(value: object, results: Results) -> tuple[str | None, str | None]:
    if value is None and not isinstance(results, Append | Upsert):
        return None, None
    parts = value.split(".") if isinstance(value, str) else []
    if not 1 <= len(parts) <= 2 or not all(parts):
        raise InvalidOption(f"table={value!r}: expected a table's name, or schema.name")
    if _TEMPORARY.fullmatch(parts[-1]):
        raise InvalidOption(
            f"table={value!r}: the writer has a temporary table of that name, which would hide it; the "
            "target needs another name"
        )
    return (parts[0], parts[1]) if len(parts) == 2 else (None, parts[0])


def _names(option: str, value: object) -> tuple[str, ...]:
    names = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, Sequence) else ()
    if not names or not all(isinstance(name, str) and name for name in names):
        raise InvalidOption(f"{option}={value!r}: expected a column's name or a list of names")
    if len(set(names)) < len(names):
        raise InvalidOption(f"{option}={value!r}: a column is repeated")
    return names


def _run(value: object) -> str:
    if not isinstance(value, str) or not 1 <= len(inbox_options.utf8("run", value)) <= LONGEST_RUN:
        raise InvalidOption(f"run={value!r}: expected 1 to {LONGEST_RUN} bytes of text")
    return value


def _whole(option: str, value: object, lowest: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value < 2**63:
        raise InvalidOption(f"{option}={value!r}: expected a whole number, {lowest} or more")
    return value


def _one_of(option: str, value: object, choices: tuple[str, ...]) -> Any:
    if value not in choices:
        raise InvalidOption(f"{option}={value!r}: expected one of {', '.join(choices)}")
    return value


def _text_or_none(option: str, value: object) -> str | None:
    if value is not None and (not isinstance(value, str) or not value.strip()):
        raise InvalidOption(f"{option}={value!r}: expected text")
    return value


def _seconds(option: str, value: object) -> float:
    number = value.total_seconds() if isinstance(value, timedelta) else value
    if not isinstance(number, int | float):
        raise InvalidOption(f"{option}={value!r}: expected seconds (a number) or a timedelta")
    return inbox_options.seconds(option, number, inbox_options.LONGEST_WAIT)


def _retention(value: object) -> Retention:
    if isinstance(value, Retention):
        return value
    if not isinstance(value, int | float | timedelta):
        raise InvalidOption(f"retention={value!r}: expected a Retention, seconds (a number) or a timedelta")
    return Retention.of(value.total_seconds() if isinstance(value, timedelta) else value)


def _statements(option: str, value: object) -> tuple[str | Executable, ...]:
    given = tuple(value) if isinstance(value, list | tuple) else (None,)
    if not all(isinstance(each, Executable) or (isinstance(each, str) and each.strip()) for each in given):
        raise InvalidOption(f"{option}={value!r}: expected a list of SQL texts or SQLAlchemy statements")
    return given


def _after(value: object, ledger: object) -> tuple[str | Executable, ...]:
    found = _statements("after", value)
    if found and ledger == "off":
        raise InvalidOption(
            f"after={value!r}, ledger='off': only the ledger knows whether these statements have run"
        )
    return found


def _isolation(value: object) -> str | None:
    if value is None:
        return None
    name = value.upper().replace(" ", "_") if isinstance(value, str) else ""
    if name in _TOO_WEAK:
        raise InvalidOption(f"isolation_level={value!r}: no guarantee can be kept below READ_COMMITTED")
    if name not in ISOLATION_LEVELS:
        raise InvalidOption(f"isolation_level={value!r}: expected one of {', '.join(ISOLATION_LEVELS)}")
    return ISOLATION_LEVELS[name]
