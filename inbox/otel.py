"""Inboxes and relays in OpenTelemetry: metrics and spans. Needs the extra `otel`::

    StatusInbox("orders", store=store, on_event=OtelEvents())

Names follow OpenTelemetry's semantic conventions for messaging where these have one; the others begin with
``inbox.``.
"""

import time
from contextvars import Token
from dataclasses import dataclass

from inbox_outbox_base.checks.extras import brought_by
from inbox_outbox_base.monitoring.events import Event, EventKind

with brought_by("otel"):
    from opentelemetry import context, metrics, trace
    from opentelemetry.context import Context
    from opentelemetry.metrics import Histogram, MeterProvider
    from opentelemetry.trace import Span, SpanKind, Status, StatusCode, TracerProvider
    from opentelemetry.util.types import AttributeValue

__all__ = ["OtelEvents"]

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 30, 60, 300, 900)
"""Seconds: the buckets of the semantic conventions up to 10, and more for long handlers of status-table
mode."""

_BEGINS = (EventKind.CLAIMED, EventKind.UNPROTECTED)
_ENDS = (
    EventKind.COMPLETED,
    EventKind.FAILED,
    EventKind.RELEASED,
    EventKind.DEAD,
    EventKind.HALTED,
    EventKind.ABANDONED,
)
_GOOD_ENDS = (EventKind.COMPLETED, EventKind.RELEASED)
_SENDS = (EventKind.SENT, EventKind.REFUSED, EventKind.UNAVAILABLE, EventKind.UNKNOWN)
_NANOSECONDS = 1_000_000_000

_Identity = tuple[str, str, int]


@dataclass(slots=True, eq=False)
class _HandlerRun:
    """A handler that is running, and how to leave its context."""

    identity: _Identity
    span: Span
    outside: Token[Context] | None = None


class OtelEvents:
    """Makes metrics and spans of events: give it to an inbox as `on_event`.

    Metrics, each with the consumer as ``messaging.consumer.group.name`` or, for a relay, the topic as
    ``messaging.destination.name``:

    - ``inbox.events``: counter of messages, by ``inbox.event``.
    - ``inbox.active_handlers``: up-down counter of the handlers that are running.
    - ``messaging.process.duration``: histogram of the seconds that handlers took, from the claim or the
      begin of the transaction on; with ``error.type`` (the event that ended the handler) unless it succeeded
      or the message was given back.
    - ``messaging.client.sent.messages``: counter of the messages that a relay tried to send, with
      ``error.type`` (the event) unless they were accepted.
    - ``messaging.client.operation.duration``: histogram of the seconds that batches were on their way.
    - ``inbox.step.duration``: histogram of the seconds that finished steps took, by ``inbox.step``.

    Spans, in status-table mode: ``process {consumer}`` for each message that is run. It is a child of the
    span that is current when the message is claimed. It is current until the handler is over, in threads and
    in asyncio, so that the handler's own spans are its children. Its attributes are key, attempt and token.
    Finished steps are child spans; everything else that happens is an event of the span. A message that is
    not run has no span: the reason is an event of the current span, and so is everything in other parts.

    Args:
        system: the broker, as ``messaging.system``: "kafka", "rabbitmq", ...
        tracer_provider, meter_provider: None uses the global ones.
    """

    def __init__(
        self,
        *,
        system: str = "inbox",
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
    ) -> None:
        self._system = system
        self._tracer = trace.get_tracer("inbox", tracer_provider=tracer_provider)
        meter = metrics.get_meter("inbox", meter_provider=meter_provider)
        self._events = meter.create_counter("inbox.events", "{event}", "Events of messages.")
        self._active = meter.create_up_down_counter("inbox.active_handlers", "{handler}", "Running handlers.")
        self._handlers = _seconds(meter, "messaging.process.duration", "Duration of processing operation.")
        self._steps = _seconds(meter, "inbox.step.duration", "Duration of finished steps.")
        self._sent = meter.create_counter(
            "messaging.client.sent.messages", "{message}", "Number of messages producer attempted to send."
        )
        self._sends = _seconds(
            meter,
            "messaging.client.operation.duration",
            "Duration of messaging operation initiated by a client.",
        )
        self._here = context.create_key("inbox.run")
        self._claimed: dict[_Identity, _HandlerRun] = {}

    def __call__(self, event: Event) -> None:
        """Count the event, and show it in the message's span."""
        self._events.add(event.count, self._labels(event) | {"inbox.event": event.kind.value})
        run = self._run(event)
        if event.kind in _BEGINS:
            self._begin(event)
        elif event.kind is EventKind.STEP_DONE:
            self._step(event, run)
        elif event.kind in _ENDS and run is not None:
            self._end(event, run)
        else:
            if event.kind is EventKind.TAKEN:
                self._handlers.record(event.seconds, self._processed(event))
            elif event.kind in _SENDS:
                self._send(event)
            span = trace.get_current_span() if run is None else run.span
            span.add_event(f"inbox.{event.kind.value}", _details(event))

    def _run(self, event: Event) -> _HandlerRun | None:
        """The handler that the event is about: this context's, unless the event comes from a heartbeat."""
        identity = _identity(event)
        here = context.get_value(self._here)
        if isinstance(here, _HandlerRun) and here.identity == identity:
            return here
        return self._claimed.get(identity)

    def _begin(self, event: Event) -> None:
        attributes: dict[str, AttributeValue] = {
            **self._labels(event),
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "inbox.key": event.key,
            "inbox.attempt": event.attempt,
            "inbox.token": event.token,
        }
        span = self._tracer.start_span(
            f"process {event.consumer}", kind=SpanKind.CONSUMER, attributes=attributes
        )
        run = _HandlerRun(_identity(event), span)
        run.outside = context.attach(context.set_value(self._here, run, trace.set_span_in_context(span)))
        # Heartbeats report from other threads, which do not have this context.
        if event.token:
            self._claimed[run.identity] = run
        self._active.add(1, self._labels(event))

    def _step(self, event: Event, run: _HandlerRun | None) -> None:
        attributes = self._labels(event) | {"inbox.step": event.step or ""}
        self._steps.record(event.seconds, attributes)
        parent = None if run is None else trace.set_span_in_context(run.span)
        # The event comes when the step is over, so its span is made afterwards.
        ended = time.time_ns()
        began = ended - round(event.seconds * _NANOSECONDS)
        span = self._tracer.start_span(f"step {event.step}", parent, attributes=attributes, start_time=began)
        span.end(ended)

    def _end(self, event: Event, run: _HandlerRun) -> None:
        attributes = self._processed(event)
        if event.kind not in _GOOD_ENDS:
            attributes["error.type"] = event.kind.value
            run.span.set_attribute("error.type", event.kind.value)
            run.span.set_status(Status(StatusCode.ERROR, event.error))
        run.span.set_attribute("inbox.event", event.kind.value)
        run.span.end()
        self._handlers.record(event.seconds, attributes)
        self._active.add(-1, self._labels(event))
        self._claimed.pop(run.identity, None)
        if run.outside is not None:
            context.detach(run.outside)

    def _send(self, event: Event) -> None:
        attributes = self._labels(event) | {"messaging.operation.name": "send"}
        if event.kind is not EventKind.SENT:
            attributes["error.type"] = event.kind.value
        self._sent.add(event.count, attributes)
        self._sends.record(event.seconds, attributes | {"messaging.operation.type": "send"})

    def _labels(self, event: Event) -> dict[str, str]:
        labels = {"messaging.system": self._system}
        if event.consumer:
            labels["messaging.consumer.group.name"] = event.consumer
        if event.topic is not None:
            labels["messaging.destination.name"] = event.topic
        return labels

    def _processed(self, event: Event) -> dict[str, str]:
        return self._labels(event) | {"messaging.operation.name": "process"}


def _identity(event: Event) -> _Identity:
    return event.consumer, event.key, event.token


def _details(event: Event) -> dict[str, AttributeValue]:
    found = {
        "inbox.key": event.key or None,
        "inbox.step": event.step,
        "inbox.error": event.error,
        "messaging.message.id": event.message_id,
        "messaging.destination.name": event.topic,
        "messaging.batch.message_count": event.count if event.count != 1 else None,
    }
    return {name: value for name, value in found.items() if value is not None}


def _seconds(meter: metrics.Meter, name: str, about: str) -> Histogram:
    return meter.create_histogram(name, "s", about, explicit_bucket_boundaries_advisory=BUCKETS)
