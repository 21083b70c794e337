"""Each consumer's policy, stored with the data: its mode, how long its keys are kept, and their form."""

import math
import operator
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from sqlalchemy import Connection, Row

from inbox_outbox_base.checks.keys import DIGEST_FORMAT
from inbox_outbox_base.checks.retention import Retention
from inbox_outbox_base.databases import taking_statements
from inbox_outbox_base.tables.inbox import Tables

Mode = Literal["exactly-once", "status"]

DEAD_RETENTION = timedelta(days=30)
"""How long dead and halted messages are kept by default."""

_UNITS = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A consumer's entry in the table `inbox_consumer`."""

    consumer: str
    mode: str
    """"exactly-once" or "status"; "exactly-once and status" if two processes have declared both."""
    retention: timedelta
    """How long keys are kept."""
    margin: timedelta
    """The producer's and the network's part of the retention, which also counts from the oldest message that
    the broker still holds."""
    dead_retention: timedelta | None
    """How long dead and halted messages are kept; None without status-table mode."""
    digest_format: int
    """The version of the payload digest."""
    since: datetime
    """When it was first declared, or last changed by `set_policy`."""
    key_time: str | None = None
    """The form of its keys, if they name their time: "uuid7", "ulid" or "timed"; "ulid and uuid7", or "none
    and ulid", if two processes have declared both."""

    @property
    def kept(self) -> Retention:
        """The retention in the form of an inbox's option."""
        return Retention(self.retention - self.margin, self.margin)

    @property
    def seconds(self) -> dict[str, int | None]:
        """Its times as they are stored, by column."""
        return times(self.kept, None if self.dead_retention is None else self.dead_retention.total_seconds())


def look(connection: Connection, tables: Tables, consumer: str | None = None) -> dict[str, Policy]:
    """The stored policies by consumer: of one consumer, or of all."""
    statement = taking_statements.policies(tables, of_one=consumer is not None)
    found: dict[str, list[Row[Any]]] = {}
    for each in connection.execute(statement, {} if consumer is None else {"consumer_": consumer}):
        found.setdefault(each.consumer, []).append(each)
    return {name: merged(rows) for name, rows in found.items()}


def merged(rows: Sequence[Row[Any]]) -> Policy:
    """One policy from the rows of a consumer."""
    dead = [row.dead_retention for row in rows if row.dead_retention is not None]
    forms = {row.key_time for row in rows}
    return Policy(
        consumer=rows[0].consumer,
        mode=" and ".join(sorted({row.mode for row in rows})),
        retention=timedelta(seconds=max(row.retention for row in rows)),
        margin=timedelta(seconds=max(row.margin for row in rows)),
        dead_retention=timedelta(seconds=max(dead)) if dead else None,
        digest_format=max(row.digest_format for row in rows),
        since=min(row.declared_at for row in rows),
        key_time=" and ".join(sorted(each or "none" for each in forms)) if len(forms) > 1 else forms.pop(),
    )


def superseded(connection: Connection, tables: Tables) -> list[dict[str, Any]]:
    """Rows that add nothing to another row of the same consumer."""
    kept: dict[tuple[Any, ...], list[Row[Any]]] = {}
    gone: list[dict[str, Any]] = []
    rows = connection.execute(taking_statements.policies(tables, of_one=False)).all()
    for each in sorted(rows, key=lambda row: (_times(row), row.id), reverse=True):
        others = kept.setdefault((each.consumer, each.mode, each.key_time, each.digest_format), [])
        if any(all(map(operator.ge, _times(other), _times(each))) for other in others):
            gone.append({"consumer_": each.consumer, "id_": each.id})
        else:
            others.append(each)
    return gone


def _times(row: Row[Any]) -> tuple[int, int, int]:
    return row.retention, row.margin, row.dead_retention or 0


def row(consumer: str, mode: str, seconds: Mapping[str, int | None], key_time: str | None) -> dict[str, Any]:
    """The columns of a policy's row."""
    dead = seconds["dead_retention"] if mode == "status" else None
    given: dict[str, Any] = {
        "consumer": consumer,
        "id": os.urandom(16),
        "mode": mode,
        "digest_format": DIGEST_FORMAT,
        "key_time": key_time,
    }
    return given | {**seconds, "dead_retention": dead}


def times(retention: Retention | None, dead_retention: float | None) -> dict[str, int | None]:
    """By column, in seconds; None stays None."""
    if retention is None:
        kept = margin = None
    else:
        kept = math.ceil(retention.duration.total_seconds())
        margin = math.ceil((retention.producer + retention.network).total_seconds())
    dead = None if dead_retention is None else math.ceil(dead_retention)
    return {"retention": kept, "margin": margin, "dead_retention": dead}


def brief(time: timedelta) -> str:
    """A time in whole seconds as the command line takes it: 7d, 36h, 90s."""
    seconds = math.ceil(time.total_seconds())
    unit, length = next(each for each in _UNITS if each[1] == 1 or (seconds and seconds % each[1] == 0))
    return f"{seconds // length}{unit}"
