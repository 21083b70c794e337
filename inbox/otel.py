"""Inboxes and relays in OpenTelemetry: metrics and spans. Needs the extra `otel`:

    StatusInbox("orders", store=store, on_event=OtelEvents())

Names follow version 1.44 of OpenTelemetry's semantic conventions for messaging where these have one; the
others begin with ``inbox.`` or ``outbox.``.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import Token
from dataclasses import dataclass

from inbox._listening.outcome import Outcome
from inbox._tally import labels_of, tally_of
from inbox_outbox_base.checks.extras import brought_by
from inbox_outbox_base.monitoring.events import Event, EventKind, describe, kind_of
from inbox_outbox_base.words.incoming import Delivery
from inbox_outbox_base.words.outgoing import Envelope
from inbox_outbox_base.words.outgoing import Outcome as SendOutcome

with brought_by("otel"):
    from opentelemetry import context, metrics, propagate, trace
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
_LOADS = (EventKind.LOAD_ENDED, EventKind.LOAD_FAILED)
_NANOSECONDS = 1_000_000_000
_MOST_LINKS = 128
"""The most links of a span: the SDK keeps no more."""
_NO_CONTEXT = Context()

_Identity = tuple[str, str, int]


@dataclass(slots=True, eq=False)
class _HandlerRun:
    """A handler that is running, and how to leave its context."""

    identity: _Identity
    span: Span
    is_own: bool
    """Whether the span begins and ends with the handler; else it is that of the delivery."""
    outside: Token[Context] | None = None


@dataclass(slots=True, eq=False)
class _DeliverySpan:
    """The span of a message that a broker's consumer has received."""

    span: Span
    is_used: bool = False
    """Whether a handler of status-table mode has made it its own."""


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
    - ``messaging.client.consumed.messages``: counter of the messages that a broker's consumer has received.
    - ``inbox.step.duration``: histogram of the seconds that finished steps took, by ``inbox.step``.
    - ``inbox.load.duration``: histogram of the seconds that batches of Spark's writer took, with
      ``error.type`` if they failed; ``inbox.events`` has their rows.
    - ``inbox.purged``: counter of the rows that a purge has deleted.
    - ``outbox.delivery.duration``: histogram of the seconds from a message's publication until the broker's
      acceptance was recorded, by this machine's clock; of a delayed message since it was due. Of each
      relay's event it has at most 32 messages, evenly chosen.

    Spans:

    - ``send {topic}``, of a relay: one for each call of the publisher, with links to the spans in which the
      messages were published, at most 128. It is current during the call.
    - ``process {topic}``, of a broker's consumer that has this as its ``on_event``: one for each message,
      with a link to the span in which it was published. It is current in the handler.
    - ``process {consumer}``, in status-table mode without such a consumer: one for each message that is run,
      a child of the span that is current when the message is claimed. It is current until the handler is
      over, in threads and in asyncio.

    The handler's own spans are children of the last two, which have key, attempt and token in status-table
    mode. Finished steps are child spans; everything else that happens is an event of the span. A message
    that is not run has no span of its own: the reason is an event of the current span.

    Args:
        system: the broker, as ``messaging.system``: "kafka", "rabbitmq", ...
        tracer_provider: None uses the global ones.
        meter_provider: None uses the global ones.
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
        self._active = meter.create_up_down_counter("inbox.active_handlers", "{handler}", "Running handlers.")
        self._handlers = _seconds(meter, "messaging.process.duration", "Duration of processing operation.")
        self._events = tally_of(meter, meter_provider, self._handlers)
        self._steps = _seconds(meter, "inbox.step.duration", "Duration of finished steps.")
        self._sent = meter.create_counter(
            "messaging.client.sent.messages", "{message}", "Number of messages producer attempted to send."
        )
        self._sends = _seconds(
            meter,
            "messaging.client.operation.duration",
            "Duration of messaging operation initiated by a client.",
        )
        self._consumed = meter.create_counter(
            "messaging.client.consumed.messages",
            "{message}",
            "Number of messages that were delivered to the application.",
        )
        self._loads = _seconds(meter, "inbox.load.duration", "Duration of Spark's batches.")
        self._purged = meter.create_counter("inbox.purged", "{row}", "Rows that purges have deleted.")
        self._deliveries = _seconds(
            meter, "outbox.delivery.duration", "From the publication to the broker's acceptance."
        )
        self._here = context.create_key("inbox.run")
        self._delivery = context.create_key("inbox.delivery")
        self._claimed: dict[_Identity, _HandlerRun] = {}

    def __call__(self, event: Event) -> None:
        """Count the event, and show it in the message's span."""
        if event.kind is EventKind.TAKEN:  # the exactly-once path, where each microsecond counts
            here = context.get_current()
            self._events.take(self._system, event, here)
            _show(event, trace.get_current_span(here))
            return
        self._events.add(self._system, event)
        run = self._run(event)
        if event.kind in _BEGINS:
            self._begin(event)
        elif event.kind is EventKind.STEP_DONE:
            self._step(event, run)
        elif event.kind in _ENDS and run is not None:
            self._end(event, run)
        else:
            if event.kind in _SENDS:
                self._send(event)
            elif event.kind is EventKind.PURGED:
                self._purged.add(event.count, self._labels(event))
            elif event.kind in _LOADS:
                failed = {"error.type": event.kind.value} if event.kind is EventKind.LOAD_FAILED else {}
                self._loads.record(event.seconds, self._labels(event) | failed)
            _show(event, trace.get_current_span() if run is None else run.span)

    def sending(self, topic: str, messages: Sequence[Envelope]) -> Callable[[int, SendOutcome | None], None]:
        """Begin the span of a call of a relay's publisher; the function that is returned ends it, with the
        number of messages that were not accepted, and what became of the last of these."""
        attributes: dict[str, AttributeValue] = {
            "messaging.system": self._system,
            "messaging.destination.name": topic,
            "messaging.operation.name": "send",
            "messaging.operation.type": "send",
            "messaging.batch.message_count": len(messages),
        }
        if len(messages) == 1:
            attributes["messaging.message.id"] = messages[0].id
        span = self._tracer.start_span(f"send {topic}", kind=SpanKind.CLIENT, attributes=attributes)
        _link(span, (message.headers for message in messages[:_MOST_LINKS]))
        outside = context.attach(trace.set_span_in_context(span))

        def end(failed: int, last: SendOutcome | None) -> None:
            if failed and last is not None:
                span.set_attribute("error.type", kind_of(last).value)
                reason = str(getattr(last, "reason", ""))
                span.set_status(Status(StatusCode.ERROR, f"{failed} of {len(messages)}: {reason}"))
            span.end()
            context.detach(outside)

        return end

    def processing(self, delivery: Delivery) -> Callable[[Outcome | None, BaseException | None], None]:
        """Begin the span of a message that a broker's consumer has received; the function that is returned
        ends it, with the handler's outcome, or its error."""
        labels = {"messaging.system": self._system, "messaging.destination.name": delivery.topic}
        self._consumed.add(1, labels | {"messaging.operation.name": "receive"})
        attributes: dict[str, AttributeValue] = {
            **labels,
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.message.id": delivery.id,
        }
        span = self._tracer.start_span(
            f"process {delivery.topic}", kind=SpanKind.CONSUMER, attributes=attributes
        )
        _link(span, [delivery.headers])
        here = context.set_value(self._delivery, _DeliverySpan(span), trace.set_span_in_context(span))
        outside = context.attach(here)

        def end(outcome: Outcome | None, error: BaseException | None) -> None:
            failure = error if outcome is None else outcome.error
            if failure is not None:
                span.set_attribute("error.type", type(failure).__name__)
                span.set_status(Status(StatusCode.ERROR, describe(failure)))
            span.end()
            context.detach(outside)

        return end

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
        delivered = context.get_value(self._delivery)
        if isinstance(delivered, _DeliverySpan) and not delivered.is_used:
            delivered.is_used = True
            delivered.span.set_attributes(attributes)
            run = _HandlerRun(_identity(event), delivered.span, is_own=False)
        else:
            name = f"process {event.consumer}"
            made = self._tracer.start_span(name, kind=SpanKind.CONSUMER, attributes=attributes)
            run = _HandlerRun(_identity(event), made, is_own=True)
        span = run.span
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
        if run.is_own:
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
        labels = self._labels(event)
        for age in event.ages:
            self._deliveries.record(age, labels)

    def _labels(self, event: Event) -> dict[str, str]:
        return labels_of(self._system, event.consumer, event.topic)

    def _processed(self, event: Event) -> dict[str, str]:
        return self._labels(event) | {"messaging.operation.name": "process"}


def _link(span: Span, headers: Iterable[Mapping[str, str]]) -> None:
    """Add links to the spans in which messages were published. Reading them takes some 20 microseconds each,
    so not for a span that nobody gets."""
    if not span.is_recording():
        return
    for each in headers:
        published = trace.get_current_span(propagate.extract(each, _NO_CONTEXT)).get_span_context()
        if published.is_valid:
            span.add_link(published)


def _show(event: Event, span: Span) -> None:
    if span.is_recording():
        span.add_event(f"inbox.{event.kind.value}", _details(event))


def _identity(event: Event) -> _Identity:
    return event.consumer, event.key, event.token


def _details(event: Event) -> dict[str, AttributeValue]:
    found = {
        "inbox.key": event.key or None,
        "inbox.step": event.step,
        "inbox.error": event.error,
        "inbox.run": event.run,
        "messaging.message.id": event.message_id,
        "messaging.destination.name": event.topic,
        "messaging.batch.message_count": event.count if event.count != 1 else None,
    }
    return {name: value for name, value in found.items() if value is not None}


def _seconds(meter: metrics.Meter, name: str, about: str) -> Histogram:
    return meter.create_histogram(name, "s", about, explicit_bucket_boundaries_advisory=BUCKETS)
