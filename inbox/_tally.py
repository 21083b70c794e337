"""Counts of events for OpenTelemetry, which a reader fetches now and then: ten times cheaper than a counter
that is called for each event."""

import threading
from collections import Counter
from collections.abc import Iterable, MutableMapping
from typing import NamedTuple
from weakref import WeakKeyDictionary

from inbox_outbox_base.checks.extras import brought_by
from inbox_outbox_base.monitoring.events import Event, EventKind

with brought_by("otel"):
    from opentelemetry import metrics
    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation

_MOST = 2_000
"""The most numbers, as in OpenTelemetry's SDK: what more consumers and topics have is counted together."""


class Counted(NamedTuple):
    """What is counted together."""

    system: str
    kind: EventKind
    consumer: str
    topic: str | None


class EventTally:
    """How many messages the events of each kind were about, by consumer and topic; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[Counted] = Counter()

    def add(self, system: str, event: Event) -> None:
        """Count it."""
        counted = Counted(system, event.kind, event.consumer, event.topic)
        with self._lock:
            if len(self._counts) >= _MOST and counted not in self._counts:
                counted = Counted(system, event.kind, "", None)
            self._counts[counted] += event.count

    def observe(self, _: CallbackOptions) -> Iterable[Observation]:
        """The counts since the beginning."""
        with self._lock:
            counts = dict(self._counts)
        for each, number in counts.items():
            labels = labels_of(each.system, each.consumer, each.topic)
            yield Observation(number, labels | {"inbox.event": each.kind.value})


def labels_of(system: str, consumer: str, topic: str | None) -> dict[str, str]:
    """The attributes that all metrics have."""
    labels = {"messaging.system": system}
    if consumer:
        labels["messaging.consumer.group.name"] = consumer
    if topic is not None:
        labels["messaging.destination.name"] = topic
    return labels


_everywhere = EventTally()
"""What is counted for the global meter provider, which a program may set later."""
_tallies: MutableMapping[MeterProvider, EventTally] = WeakKeyDictionary()
_making = threading.Lock()


def tally_of(meter: metrics.Meter, given: MeterProvider | None) -> EventTally:
    """The counts of all `OtelEvents` of a meter provider, which calls the function of the first one only."""
    everywhere = metrics.get_meter_provider()
    provider = everywhere if given is None else given
    with _making:
        found = _tallies.get(provider)
        if found is None:
            found = _tallies[provider] = _everywhere if provider is everywhere else EventTally()
            meter.create_observable_counter("inbox.events", [found.observe], "{event}", "Events of messages.")
    return found
