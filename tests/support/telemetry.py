"""OpenTelemetry's SDK in memory, and what tests ask about spans."""

from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from inbox import Backoff, SqlStore, StatusInbox
from inbox.otel import OtelEvents
from tests.support.database import Database


class Telemetry:
    """OpenTelemetry's SDK, with all its data kept in memory."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.reader = InMemoryMetricReader()
        self.traces = TracerProvider()
        self.traces.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.traces.get_tracer("test")
        self.metrics = MeterProvider([self.reader])
        self.events = OtelEvents(system="kafka", tracer_provider=self.traces, meter_provider=self.metrics)

    def inbox(self, database: Database, **options: Any) -> StatusInbox:
        """An inbox that reports to this telemetry."""
        store = SqlStore(database.engine())
        fixed: dict[str, Any] = {"on_event": self.events, "backoff": Backoff(0.01), "on_refusal": "return"}
        return StatusInbox("orders", store=store, **fixed | options)

    def spans(self, name: str) -> list[ReadableSpan]:
        """The spans with this name, in the order in which they ended."""
        return [span for span in self.exporter.get_finished_spans() if span.name == name]

    def points(self, name: str) -> list[Any]:
        """The data points of a metric so far."""
        data = self.reader.get_metrics_data()
        return [
            point
            for resource in (data.resource_metrics if data else [])
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        ]

    def counted(self) -> dict[str, int]:
        """The count of each event."""
        return {point.attributes["inbox.event"]: point.value for point in self.points("inbox.events")}

    def running(self) -> int:
        """The number of running handlers."""
        (point,) = self.points("inbox.active_handlers")
        return int(point.value)


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    """A new, empty Telemetry."""
    made = Telemetry()
    yield made
    made.traces.shutdown()
    made.metrics.shutdown()


def parent(span: ReadableSpan) -> int | None:
    """The id of a span's parent."""
    return span.parent.span_id if span.parent else None


def identity(span: ReadableSpan) -> int:
    """A span's own id."""
    here = span.get_span_context()
    assert here is not None
    return here.span_id


def names(span: ReadableSpan) -> list[str]:
    """The names of a span's events."""
    return [event.name for event in span.events]
