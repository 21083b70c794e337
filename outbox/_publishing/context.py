"""What every message says about where it comes from: W3C trace context."""

from collections.abc import Callable
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
