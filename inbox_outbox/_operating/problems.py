"""What needs somebody, found in the overviews."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta

from inbox import ConsumerOverview, InboxOverview
from inbox_outbox._exit import FAILED, LATE, NO_RELAY, NOT_TAKEN, OVERDUE, STOPPED, UNSEEN
from inbox_outbox_base.checks.retention import DAYS_AHEAD
from outbox import Count, OutboxOverview

from .units import duration

_INBOX_STATES = {
    "dead": "of status-table mode {are} dead",
    "halted": "of status-table mode {are} halted",
    "given_up": "{were} given up by a listener within a day",
    "mismatches": "of keys that were taken with another payload {were} refused within a day",
    "rejected": "of bulk writers {were} refused by the target and set aside",
}
"""What a person has to look at, of each consumer."""
_REFUSED = ("given_up", "mismatches", "rejected")
"""Those of them that `inbox.refused` lists."""
URGENCY = (FAILED, NO_RELAY, NOT_TAKEN, LATE, STOPPED, OVERDUE, UNSEEN)
"""The exit codes of `inbox-outbox health`, the most urgent first."""

_NOTICED = timedelta(seconds=10)
"""Within this time after the end of a lease, other relays take over."""
_EVERY_DAY = "run `inbox-outbox partitions` every day"
_NAMED = 3
"""The most topics or consumers in a sentence."""


@dataclass(frozen=True, slots=True)
class HealthLimits:
    """From when on something is a problem."""

    age: timedelta = timedelta(minutes=5)
    """Of the oldest message that can be sent."""
    no_relay: timedelta = timedelta(minutes=1)
    """Since the last relay ended."""
    stopped: int = 0
    """Dead, held and halted messages."""
    overdue: timedelta = timedelta(days=1)
    """Of keys that a purge should have deleted."""
    ahead: timedelta = DAYS_AHEAD
    """For which a consumer needs partitions, if it has some."""
    rejected: timedelta = timedelta(minutes=5)
    """Since the broker rejects a topic."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that needs somebody."""

    code: int
    """The exit code of `inbox-outbox health`."""
    text: str
    is_refused: bool = False
    """Whether it is about messages that `inbox.refused` lists."""
    topic: str | None = None
    """The topic that it is about, if it is one."""
    consumer: str | None = None
    """The consumer that it is about, if it is one."""


def problems(
    inbox: InboxOverview | None, outbox: OutboxOverview | None, limits: HealthLimits
) -> list[Problem]:
    """What needs somebody, the most urgent first."""
    found: list[Problem] = []
    if outbox is not None:
        found += _of_relays(outbox, limits)
        found += _of_rejections(outbox, limits)
        found += _of_age(outbox, limits)
    found += _of_stopped(inbox, outbox, limits)
    if inbox is not None:
        found += _of_purges(inbox, limits)
    return found


def _of_relays(found: OutboxOverview, limits: HealthLimits) -> Iterator[Problem]:
    since, now = found.no_relay_since, found.database.now
    is_due = found.next_due is not None and found.next_due <= now
    has_work = is_due or any(each.number for each in (found.pending, found.waiting, found.unknown))
    if any(each.lease_left >= 0 for each in found.relays):
        for each in found.relays:
            if each.lease_left < -_NOTICED.total_seconds() and each.buckets:
                ago = duration(timedelta(seconds=-each.lease_left))
                text = f"relay {each.name!r} is lost: its lease ended {ago} ago"
                yield Problem(NO_RELAY, f"{text}, and nobody has taken over its {each.buckets} buckets")
            elif each.lease_left >= 0 and each.silent_for and each.buckets:
                ago = duration(timedelta(seconds=each.silent_for))
                left = duration(timedelta(seconds=each.lease_left))
                text = (
                    f"relay {each.name!r} has given no sign of life for {ago}: it has died, or waits for the"
                )
                rest = f"database; its {each.buckets} buckets wait until its lease ends, in {left}"
                yield Problem(NO_RELAY, f"{text} {rest}")
        return
    if since is not None and now - since > limits.no_relay:
        waiting = "; messages wait to be sent" if has_work else ""
        yield Problem(NO_RELAY, f"no relay is running since {since:%Y-%m-%d %H:%M:%S} UTC{waiting}")
    elif since is None and has_work:
        yield Problem(NO_RELAY, "no relay has ever run; messages wait to be sent")


def _of_rejections(found: OutboxOverview, limits: HealthLimits) -> Iterator[Problem]:
    rejected = [
        (each.topic, each.rejected)
        for each in found.topics
        if each.rejected is not None
        and not each.is_paused
        and found.database.now - each.rejected.since > limits.rejected
    ]
    if len(rejected) > 1 and _is_broker_away(found):
        _, last = max(rejected, key=lambda each: each[1].since)
        age = duration(found.database.now - last.since)
        yield Problem(
            NOT_TAKEN, f"the broker has taken nothing of all {len(rejected)} topics for {age}: {last.reason}"
        )
    else:
        for topic, known in rejected:
            age = duration(found.database.now - known.since)
            text = f"the broker has rejected topic {topic!r} for {age}: {known.reason}"
            yield Problem(NOT_TAKEN, text, topic=topic)
    full = [each.name for each in found.relays if each.lease_left >= 0 and each.reads_no_further]
    if full:
        text = f"very many messages cannot be sent, so that relays read no further{_names(full)}"
        crowded_by = next((each.crowded_by for each in found.relays if each.crowded_by is not None), None)
        yield Problem(NOT_TAKEN, text + (f"; most are of topic {crowded_by!r}" if crowded_by else ""))


def _is_broker_away(found: OutboxOverview) -> bool:
    """Whether the broker rejects every topic of which messages could be sent, and there are several."""
    states = ("pending", "waiting", "unknown")
    waiting = [
        each
        for each in found.topics
        if not each.is_paused and any(getattr(each, state).number for state in states)
    ]
    return len(waiting) > 1 and all(each.rejected is not None for each in waiting)


def _of_age(found: OutboxOverview, limits: HealthLimits) -> Iterator[Problem]:
    if not found.is_oldest_known:
        why = "very many are held, or in buckets that do not exist"
        yield Problem(LATE, f"how old the oldest message is was not read: {why}")
    if found.oldest_age is None or found.oldest_age <= limits.age.total_seconds():
        return
    age = duration(timedelta(seconds=found.oldest_age))
    late = [each for each in found.topics if (each.oldest_age or 0.0) > limits.age.total_seconds()]
    oldest = max(late, key=lambda each: each.oldest_age or 0.0, default=None)
    why = ""
    if _is_broker_away(found):
        known = max((each.rejected for each in found.topics if each.rejected), key=lambda each: each.since)
        why = "; the broker takes nothing of any topic"
        if found.database.now - known.since <= limits.rejected:  # else a problem of its own has the reason
            why += f": {known.reason}"
    elif oldest is not None and len(late) > 1:
        why = f"; messages of {len(late)} topics wait for too long{_names(each.topic for each in late)}"
    elif oldest is not None:
        why = f", of topic {oldest.topic!r}"
        why += ", which is paused" if oldest.is_paused else f": {oldest.error}" if oldest.error else ""
    topic = oldest.topic if oldest is not None and len(late) == 1 else None
    yield Problem(LATE, f"the oldest message has waited for {age}{why}", topic=topic)


def _of_stopped(
    inbox: InboxOverview | None, outbox: OutboxOverview | None, limits: HealthLimits
) -> Iterator[Problem]:
    for state in ("dead", "held"):
        if outbox is not None and (count := getattr(outbox, state)).number > limits.stopped:
            topics = (each.topic for each in outbox.topics if getattr(each, state).number)
            text = f"{_counted(count, 'message')} of the outbox {_are(count)} {state}{_names(topics)}"
            yield Problem(STOPPED, text)
    for state, said in _INBOX_STATES.items():
        its = [] if inbox is None else [each for each in inbox.consumers if getattr(each, state).number]
        if (total := sum(getattr(each, state).number for each in its)) > limits.stopped:
            is_exact = all(getattr(each, state).precision == "exact" for each in its)
            count = Count(total, "exact" if is_exact else "at least")
            names = _names(each.consumer for each in its)
            noun = "row" if state == "rejected" else "message"
            text = f"{_counted(count, noun)} {said.format(are=_are(count), were=_were(count))}{names}"
            only = its[0].consumer if len(its) == 1 else None
            yield Problem(STOPPED, text, is_refused=state in _REFUSED, consumer=only)
    consumers = () if inbox is None else inbox.consumers
    blind = [each for each in consumers if any(_is_blind(getattr(each, state)) for state in _REFUSED)]
    if blind:
        names = _names(each.consumer for each in blind)
        text = f"very many messages were refused within a day, and not all were looked at{names}"
        yield Problem(STOPPED, text, is_refused=True)


def _of_purges(found: InboxOverview, limits: HealthLimits) -> Iterator[Problem]:
    for each in found.consumers:
        if each.partitions_ahead is not None:
            yield from _of_partitions(each, each.partitions_ahead, limits)
    late = [
        each
        for each in found.consumers
        if each.partitions_ahead is None and each.overdue > limits.overdue.total_seconds()
    ]
    if late:
        worst = duration(timedelta(seconds=max(each.overdue for each in late)))
        names = _names(each.consumer for each in late)
        ends = [each.last_purge.begun_at for each in late if each.last_purge is not None]
        last = f"the last purge was at {min(ends):%Y-%m-%d %H:%M} UTC" if ends else "no purge has run"
        if 0 < len(ends) < len(late):
            last += ", and of some there was none"
        only = late[0].consumer if len(late) == 1 else None
        yield Problem(OVERDUE, f"keys are up to {worst} past their retention; {last}{names}", consumer=only)


def _of_partitions(found: ConsumerOverview, ahead: float, limits: HealthLimits) -> Iterator[Problem]:
    its = f"of consumer {found.consumer!r}"
    if ahead < limits.ahead.total_seconds():
        when = f"end in {duration(timedelta(seconds=ahead))}" if ahead > 0 else "have ended"
        said = f"the partitions {its} {when}, and then its messages wait"
        yield Problem(OVERDUE, f"{said}: {_EVERY_DAY}", consumer=found.consumer)
    if found.overdue > limits.overdue.total_seconds():
        worst = duration(timedelta(seconds=found.overdue))
        said = f"keys {its} are {worst} past their retention"
        older = "and purges for keys from before the first partition"
        yield Problem(OVERDUE, f"{said}: {_EVERY_DAY}, {older}", consumer=found.consumer)


def _is_blind(count: Count) -> bool:
    """Whether nothing was found in those that were looked at, and there are more."""
    return count.number == 0 and count.precision == "at least"


def _counted(count: Count, noun: str) -> str:
    return f"{count} {noun}{'' if count.number == 1 else 's'}"


def _are(count: Count) -> str:
    return "is" if count == Count(1) else "are"


def _were(count: Count) -> str:
    return "was" if count == Count(1) else "were"


def _names(names: Iterable[str]) -> str:
    found = sorted(names)
    if not found:
        return ""
    more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    return f" ({', '.join(found[:_NAMED])}{more})"
