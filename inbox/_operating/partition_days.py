"""From when to when consumers have partitions, for those who only look."""

from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import Connection, Table

from inbox_outbox_base.checks.key_times import FORMS
from inbox_outbox_base.databases.registry import partitioning
from inbox_outbox_base.transactions.policy import Policy


class Days(NamedTuple):
    """The partitions of a consumer."""

    first_end: datetime
    """Where the oldest one ends: all its keys are older."""
    end: datetime
    """Where the last one ends."""


def days_of(connection: Connection, table: Table, policies: Mapping[str, Policy]) -> dict[str, Days]:
    """The consumers that have partitions, and whose keys have a known form."""
    by = partitioning(connection.dialect.name)
    found: dict[str, Days] = {}
    for each in by.found(connection, table) if by is not None else ():
        policy = policies.get(each.consumer)
        form = None if policy is None else FORMS.get(policy.key_time)  # type: ignore[call-overload]
        if form is not None:
            end = form.time(each.end)
            before = found.setdefault(each.consumer, Days(end, end))
            if each.state == "attached":
                found[each.consumer] = before._replace(end=end)
    return found
