"""The pages of the inbox."""

from collections.abc import Iterator
from typing import Any

import inbox
from inbox import ConsumerOverview, Listing, Record, RefusedMessage, Status
from inbox_outbox._operating.problems import HealthLimits

from ._causes import each_seen, merged
from ._charts import consumer_charts
from ._pages import Asked, Page, PagePart, missing, outcome_of, read_all

_MESSAGES = 50
_SHOWN = (Status.HALTED, Status.DEAD, Status.FAILED, Status.CONSUMING)
"""The statuses of which messages are listed, those that wait for somebody first."""


def consumers(asked: Asked) -> Page:
    """All consumers."""
    return Page("consumers.html", "Consumers", "consumers", {"inbox": asked.halves.inbox})


def consumer(asked: Asked) -> Page:
    """One consumer, its messages of status-table mode that are not done, and those that were refused."""
    name = asked.query.get("name", "")
    inboxes = () if asked.halves.inbox is None else asked.halves.inbox.consumers
    found = next((each for each in inboxes if each.consumer == name), None)
    if found is None:
        return missing(f"The inbox knows no consumer {name!r}, or there are too many to show this one.")
    listed = {status: _listed(asked, found, status) for status in _SHOWN}
    reading, schema = asked.site.reading, asked.site.schema
    refused = read_all(
        lambda: _refusals(inbox.refused(reading, consumer=name, limit=_MESSAGES, schema=schema))
    )
    values = {
        "consumer": found,
        "charts": consumer_charts(asked, name),
        "listed": listed,
        "refused": refused,
        "all_refused": merged([each for _, each in refused.value]) if refused.value else None,
        "most": _MESSAGES,
        "overdue": HealthLimits().overdue.total_seconds(),
        **outcome_of(asked),
    }
    return Page("consumer.html", name, "consumers", values)


def _refusals(found: Listing[RefusedMessage]) -> Iterator[tuple[RefusedMessage, str]]:
    """Each with what names it for a decision."""
    return zip(found, each_seen(found), strict=True)


def _listed(asked: Asked, found: ConsumerOverview, status: Status) -> PagePart[list[Record]]:
    count = getattr(found, status.value)
    if not count.number:
        return PagePart([])
    store = asked.site.records[0]
    given: dict[str, Any] = {"consumer": found.consumer, "status": status, "limit": _MESSAGES}
    return read_all(lambda: inbox.list_messages(store, **given))
