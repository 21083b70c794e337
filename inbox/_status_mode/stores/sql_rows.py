"""Records as rows: the parameters of status-table mode's statements, and what the statements return."""

from collections.abc import Iterable
from typing import Any

from inbox_outbox_base.databases.claiming import Fields
from inbox_outbox_base.databases.claiming_statements import GIVEN
from inbox_outbox_base.words.incoming import Status

from .records import Change, HeldRecord, Record, Request


def new(request: Request) -> dict[str, Any]:
    names = (*GIVEN, "lease")
    return {name: getattr(request, name) for name in names}


def where(held: HeldRecord) -> dict[str, Any]:
    return {"consumer_": held.consumer, "key_": held.key, "token_": held.token}


def values(change: Change) -> dict[str, Any]:
    counts = ("started", "finished")
    values = change.fields() | {name: getattr(change, name) for name in counts if getattr(change, name)}
    return values if change.lease is None else values | {"lease": change.lease}


def names(statuses: Iterable[Status]) -> frozenset[str]:
    return frozenset(status.value for status in statuses)


def record_of(found: Fields) -> Record:
    values = {name: found[name] for name in Record.__dataclass_fields__}
    return Record(**values | {"status": Status(values["status"])})


def wanted(consumer: str | None, status: Status | None, key: str | None, error: str | None) -> dict[str, Any]:
    """The parameters that choose records; None chooses nothing."""
    given = {"consumer_": consumer, "status_": status and status.value, "key_": key, "error_": error}
    return {name: value for name, value in given.items() if value is not None}
