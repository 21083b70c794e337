"""The pages of stopped messages."""

from ._causes import INBOX, INBOX_STATES, MOST, OUTBOX, OUTBOX_STATES, Place, stopped, stopped_at
from ._pages import WITHIN, Asked, Page, missing, number_of, outcome_of

_TOGETHER = 50
"""Messages on one page of a group."""
ACTIONS_OF = {
    (OUTBOX, "dead"): ("retry", "drop"),
    (OUTBOX, "held"): ("retry", "drop"),
    (INBOX, "dead"): ("retry", "discard"),
    (INBOX, "halted"): ("discard",),
}
"""What can be decided about stopped messages. A halted one is resolved on its own page."""


def stopped_page(asked: Asked) -> Page:
    """All stopped messages, by cause."""
    topic, consumer = asked.query.get("topic") or None, asked.query.get("consumer") or None
    store = number_of(asked.query.get("store"))
    if store >= len(asked.site.records):
        return missing("The address names no store.")
    values = {
        "groups": stopped(asked, topic, consumer, store),
        "topic": topic,
        "consumer": consumer,
        "store": store,
        "further": range(1, len(asked.site.records)),
        "most": MOST,
        "within": WITHIN if asked.is_long else None,
        "has_more": asked.halves.inbox is not None and asked.halves.inbox.has_more_consumers,
    }
    return Page("stopped.html", "Stopped", "stopped", values)


def group(asked: Asked) -> Page:
    """The messages of one cause, and what can be decided about them."""
    place = place_of(asked)
    if place is None:
        return missing("The address names no group.")
    found = next((each for each in stopped_at(asked, place) if each.mark == asked.query.get("cause")), None)
    if found is None:
        values = {"place": place, "group": None, **outcome_of(asked)}
        return Page("group.html", "Stopped", "stopped", values, is_live=False)
    pages = -(-len(found.messages) // _TOGETHER)
    number = min(max(1, number_of(asked.query.get("page"))), pages)
    shown = found.messages[(number - 1) * _TOGETHER : number * _TOGETHER]
    values = {
        "place": place,
        "group": found,
        "shown": shown,
        "actions": _actions(asked, place, is_kept=any(each.is_kept for each in found.messages)),
        "page": number,
        "pages": pages,
        **outcome_of(asked),
    }
    return Page("group.html", found.cause, "stopped", values, is_live=False)


def _actions(asked: Asked, place: Place, *, is_kept: bool) -> list[str]:
    """What the visitor may decide about these messages; some of them can be published again if `is_kept`."""
    allowed = [each for each in ACTIONS_OF[place.half, place.state] if asked.visitor.may(each)]
    return asked.with_delivery(allowed, place.store) if is_kept else allowed


def place_of(asked: Asked) -> Place | None:
    """The place that an address names."""
    half, state, of = (asked.query.get(name, "") for name in ("half", "state", "of"))
    store = number_of(asked.query.get("store"))
    states: dict[str, tuple[str, ...]] = {OUTBOX: OUTBOX_STATES, INBOX: INBOX_STATES}
    if state not in states.get(half, ()) or not of or not 0 <= store < len(asked.site.records):
        return None
    return Place(half, state, of, store)
