"""Prints messages of status-table mode, for people and for programs."""

import json
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from inbox import Record

from ._operating.units import duration, size
from ._print import grid


def as_object(record: Record) -> dict[str, Any]:
    """A record for JSON: bytes in hexadecimal, steps and history as structures, of the payload only its size,
    and of what came with it only the message's topic, id and key."""
    found = asdict(record)
    payload, delivery = found.pop("payload"), found.pop("delivery")
    came = None if delivery is None else json.loads(delivery)
    return found | {
        "claim": record.claim.hex(),
        "digest": record.digest and record.digest.hex(),
        "payload_bytes": None if payload is None else len(payload),
        "delivery": came and {name: came[name] for name in ("topic", "id", "key")},
        "steps": json.loads(record.steps or "{}"),
        "history": json.loads(record.history or "[]"),
    }


def print_list(records: list[Record]) -> None:
    """Print a line for each record."""
    now = datetime.now(UTC)
    grid(
        ("consumer", "key", "status", "attempts", "changed", "error"),
        [
            (
                record.consumer,
                record.key,
                record.status,
                str(record.attempts_started),
                f"{duration(now - record.updated_at)} ago",
                record.error or "-",
            )
            for record in records
        ],
    )


def print_record(record: Record) -> None:
    """Print everything stored about a message, with its steps and its history."""
    found = as_object(record)
    steps, history = found.pop("steps"), found.pop("history")
    payload = found.pop("payload_bytes")
    delivery = found.pop("delivery")
    came = {f"came with its {name}": value for name, value in (delivery or {}).items()}
    rows = [*found.items(), *came.items(), ("payload", None if payload is None else size(payload))]
    grid(("column", "value"), [(name, _text(value)) for name, value in rows])
    if steps:
        grid(
            ("step", "state", "result"),
            [(name, step["state"], json.dumps(step.get("result"))) for name, step in steps.items()],
        )
    if history:
        columns = ("ended", "attempt", "owner", "error")
        grid(columns, [[_text(entry[name]) for name in columns] for entry in history])


def _text(value: Any) -> str:
    if value is None:
        return "-"
    return value.isoformat() if isinstance(value, datetime) else str(value)
