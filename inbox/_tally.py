"""Numbers of events for OpenTelemetry, which a reader fetches now and then.

Between two transactions, each call of an instrument would take some 20 microseconds, a twentieth of the
transaction; noting the event takes one, and calls for 256 events at a time take ten for each.
"""

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, MutableMapping
from contextlib import suppress
from typing import NamedTuple
from weakref import WeakKeyDictionary

from inbox_outbox_base.checks.extras import brought_by
from inbox_outbox_base.monitoring.events import Event, EventKind

with brought_by("otel"):
    from opentelemetry import context, metrics
    from opentelemetry.context import Context
    from opentelemetry.metrics import CallbackOptions, Histogram, MeterProvider, Observation

_TOGETHER = 256
"""How many durations are recorded together."""
_MOST = 2_000
"""The most numbers, as in OpenTelemetry's SDK: what more consumers and topics have is counted together."""
_NOWHERE = context.set_value("inbox.nowhere", True, Context())
"""A context without a span; an empty one would mean the current one."""


class Counted(NamedTuple):
    """What is counted together."""

    system: str
    kind: EventKind
    consumer: str
    topic: str | None


class EventTally:
    """How many messages the events of each kind were about, by consumer and topic, and how long transactions
    took; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[Counted] = Counter()
        self._taken: deque[tuple[str, Event, Context]] = deque()
        """Transactions that are not counted yet."""
        self._record: Callable[..., None] | None = None

    def add(self, system: str, event: Event) -> None:
        """Count it."""
        self._add(Counted(system, event.kind, event.consumer, event.topic), event.count)

    def _add(self, counted: Counted, number: int) -> None:
        with self._lock:
            if len(self._counts) >= _MOST and counted not in self._counts:
                counted = Counted(counted.system, counted.kind, "", None)
            self._counts[counted] += number

    def take(self, system: str, event: Event, here: Context) -> None:
        """Note a transaction, to be counted later, in this context."""
        self._taken.append((system, event, here or _NOWHERE))
        if len(self._taken) >= _TOGETHER:
            self._count()

    def _count(self) -> None:
        numbers: Counter[Counted] = Counter()
        attributes: dict[Counted, dict[str, str]] = {}
        with suppress(IndexError):  # another thread may count some of them
            while True:
                system, event, here = self._taken.popleft()
                counted = Counted(system, event.kind, event.consumer, event.topic)
                if counted not in attributes:
                    labels = labels_of(system, event.consumer, event.topic)
                    attributes[counted] = labels | {"messaging.operation.name": "process"}
                numbers[counted] += event.count
                if self._record is not None:
                    self._record(event.seconds, attributes[counted], here)
        for counted, number in numbers.items():
            self._add(counted, number)

    def begin(self, meter: metrics.Meter, handlers: Histogram) -> None:
        """Let the meter provider read it."""
        self._record = handlers.record
        meter.create_observable_counter("inbox.events", [self._observe], "{event}", "Events of messages.")

    def _observe(self, _: CallbackOptions) -> Iterable[Observation]:
        """The counts since the beginning. A reader asks before it looks at histograms."""
        self._count()
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


def tally_of(meter: metrics.Meter, given: MeterProvider | None, handlers: Histogram) -> EventTally:
    """The numbers of all `OtelEvents` of a meter provider, which calls the function of the first one only."""
    everywhere = metrics.get_meter_provider()
    provider = everywhere if given is None else given
    with _making:
        found = _tallies.get(provider)
        if found is None:
            found = _tallies[provider] = _everywhere if provider is everywhere else EventTally()
            found.begin(meter, handlers)
    return found
