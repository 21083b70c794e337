"""What every message says about where it comes from: W3C trace context, and CloudEvents names."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

try:
    from opentelemetry.propagate import inject as _inject
except ImportError:  # the extra `otel` is not installed: there is no trace to go on with
    inject: Callable[[dict[str, str]], Any] | None = None
else:
    inject = _inject


def trace_context() -> dict[str, str]:
    """What the propagators of this process say: by default `traceparent` and `tracestate` of the span that is
    current, if there is one, and `baggage`."""
    if inject is None:
        return {}
    headers: dict[str, str] = {}
    inject(headers)
    return headers


def cloud_event(source: str, message_id: str, topic: str, key: str | None) -> dict[str, str]:
    """The attributes of CloudEvents 1.0 in binary mode, named as in its Kafka binding; type is the topic."""
    attributes = {
        "ce_specversion": "1.0",
        "ce_id": message_id,
        "ce_source": source,
        "ce_type": topic,
        "ce_time": datetime.now(UTC).isoformat(),
    }
    return attributes if key is None else attributes | {"ce_subject": key}
