"""Records as rows: the parameters of status-table mode's statements, and what the statements return."""

import re
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from sqlalchemy import Row

from . import sql_statements
from .records import Change, Held, Record, Request, Status

_ESCAPED = re.compile(rb"\\(?:([0-7]{3})|\\)")


def new(request: Request) -> dict[str, Any]:
    names = (*sql_statements.GIVEN, "lease")
    return {name: getattr(request, name) for name in names}


def where(held: Held) -> dict[str, Any]:
    return {"consumer_": held.consumer, "key_": held.key, "token_": held.token}


def values(change: Change) -> dict[str, Any]:
    counts = ("started", "finished")
    values = change.fields() | {name: getattr(change, name) for name in counts if getattr(change, name)}
    return values if change.lease is None else values | {"lease": change.lease}


def names(statuses: Iterable[Status]) -> frozenset[str]:
    return frozenset(status.value for status in statuses)


def record_of_json(found: dict[str, Any]) -> Record:
    """A record as PostgreSQL's to_jsonb() returns it."""
    for name in ("claim", "digest", "payload"):
        if found[name] is not None:
            found[name] = _bytes(found[name])
    for name in ("lease_until", "created_at", "updated_at"):
        if found[name] is not None:
            found[name] = datetime.fromisoformat(found[name])
    return Record(**found | {"status": Status(found["status"])})


def _bytes(text: str) -> bytes:
    """Bytes as PostgreSQL writes them, for any bytea_output."""
    if text.startswith("\\x"):
        return bytes.fromhex(text[2:])
    return _ESCAPED.sub(lambda found: bytes([int(found[1], 8)]) if found[1] else b"\\", text.encode())


def record_of(row: Row[Any]) -> Record:
    found = row._mapping  # noqa: SLF001 - SQLAlchemy documents it
    values = {name: found[name] for name in Record.__dataclass_fields__}
    return Record(**values | {"status": Status(values["status"])})
