"""The overview, and the pages of the outbox."""

from urllib.parse import urlencode

import inbox
import outbox
from inbox_outbox._exit import LATE, NO_RELAY, NOT_TAKEN, OVERDUE, STOPPED
from inbox_outbox._operating.looking import not_in_time
from inbox_outbox._operating.problems import Problem
from outbox import MessageState, PausedTopic, StoredMessage, TopicOverview

from ._charts import charts, topic_charts
from ._pages import WITHIN, Asked, Page, PagePart, missing, read_all
from ._pulse import problems_in

_FIRST = 10
"""The topics and consumers on the first page."""
_MESSAGES = 50
_DECISIONS = 200
_LINKS = {NO_RELAY: "relays", NOT_TAKEN: "topics", LATE: "topics", STOPPED: "stopped", OVERDUE: "consumers"}
"""By the exit code of `inbox-outbox health`, the page about a problem."""


def overview(asked: Asked) -> Page:
    """What needs somebody, and the numbers."""
    found = asked.halves
    said = [(each.text, _link(each)) for each in problems_in(asked.glance)]
    values = {
        "problems": said,
        "inbox": found.inbox,
        "outbox": found.outbox,
        "unseen": [each for each in found.unseen if each not in map(not_in_time, found.late)],
        "first": _FIRST,
        "charts": charts(asked),
    }
    return Page("overview.html", "Overview", "overview", values)


def _link(problem: Problem) -> str | None:
    """The page about it."""
    if problem.topic is not None:
        return f"topic?{urlencode({'name': problem.topic})}"
    if problem.consumer is not None and (problem.is_refused or problem.code == OVERDUE):
        return f"consumer?{urlencode({'name': problem.consumer})}"
    return "consumers" if problem.is_refused else _LINKS.get(problem.code)


def topics(asked: Asked) -> Page:
    """All topics that have something to show."""
    found, site = asked.halves.outbox, asked.site
    pauses = PagePart(list[PausedTopic]())
    if found is not None and found.paused:
        pauses = read_all(lambda: outbox.pauses(site.reading, schema=site.schema))
    values = {"outbox": found, "pauses": {each.topic: each for each in pauses.value}, "all_pauses": pauses}
    return Page("topics.html", "Topics", "topics", {**values, **_paused_now(asked)})


def topic(asked: Asked) -> Page:
    """One topic, and its messages: those that have failed first, because they are why others wait."""
    name = asked.query.get("name", "")
    if asked.halves.outbox is None or not name:
        return missing("The address names no topic.")
    reading, schema = asked.site.reading, asked.site.schema
    found = next((each for each in asked.halves.outbox.topics if each.topic == name), None)
    line = read_all(
        lambda: outbox.peek(reading, _MESSAGES, topic=name, errors_first=True, within=WITHIN, schema=schema)
    )
    dead = read_all(lambda: _dead(asked, name, found))
    pauses = read_all(lambda: outbox.pauses(reading, schema=schema))
    values = {
        "name": name,
        "topic": found,
        "line": line,
        "charts": topic_charts(asked, name),
        "dead": dead,
        "pauses": [each for each in pauses.value if each.topic in (name, "*")],
        "all_pauses": pauses,
        "most": _MESSAGES,
        "within": WITHIN if asked.is_long else None,
        **_paused_now(asked),
    }
    return Page("topic.html", name, "topics", values)


def _paused_now(asked: Asked) -> dict[str, object]:
    """What a decision about a pause, from which the page was opened, has done."""
    did = asked.query.get("did")
    return {"did": did if did in ("pause", "resume") else None, "done": asked.query.get("done") == "1"}


def _dead(asked: Asked, name: str, found: TopicOverview | None) -> list[StoredMessage]:
    if found is not None and not found.dead.number and found.dead.precision == "exact":
        return []
    reading, schema = asked.site.reading, asked.site.schema
    return outbox.peek(reading, _MESSAGES, topic=name, state=MessageState.DEAD, schema=schema)


def relays(asked: Asked) -> Page:
    """The relays, and the buckets that they share."""
    return Page("relays.html", "Relays and buckets", "relays", {"outbox": asked.halves.outbox})


def decisions(asked: Asked) -> Page:
    """Who has decided what."""
    reading, schema = asked.site.reading, asked.site.schema
    found = read_all(lambda: inbox.decisions(reading, limit=_DECISIONS, schema=schema))
    return Page("decisions.html", "Decisions", "decisions", {"decisions": found, "most": _DECISIONS})
