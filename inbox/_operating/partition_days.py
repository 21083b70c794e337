"""From when to when consumers have partitions, for those who only look."""

from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import Connection, Table

from inbox_outbox_base.checks.key_times import FORMS
from inbox_outbox_base.databases import taking_statements
from inbox_outbox_base.databases.registry import partitioning
from inbox_outbox_base.transactions.policy import Policy


class Days(NamedTuple):
    """The partitions of a consumer."""

    first_end: datetime
    """Where the oldest one ends: all its keys are older. If the consumer has older keys in no partition, the
    time of the oldest one."""
    end: datetime
    """Where the last one ends."""


def days_of(connection: Connection, table: Table, policies: Mapping[str, Policy]) -> dict[str, Days]:
    """The consumers that have partitions, or are about to, and whose keys have a known form."""
    by = partitioning(connection.dialect.name)
    found: dict[str, Days] = {}
    if by is None:
        return found
    ends: dict[str, list[str]] = {}
    for each in by.found(connection, table):
        if each.state == "attached" or each.consumer not in ends:
            ends.setdefault(each.consumer, []).append(each.end)
    lowest = by.lowest(connection, table)
    for consumer in {*ends, *lowest}:
        first = lowest.get(consumer, "")
        policy = policies.get(consumer)
        form = None if policy is None else FORMS.get(policy.key_time)  # type: ignore[call-overload]
        if form is not None:
            its = ends.get(consumer, [first])
            older = {"consumer_": consumer, "below": first}
            oldest = connection.execute(taking_statements.oldest_key(table), older).scalar_one()
            found[consumer] = Days(form.time(oldest or its[0]), form.time(its[-1]))
    return found
