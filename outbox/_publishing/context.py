"""The trace context that messages carry (W3C)."""

from collections.abc import Callable
from typing import Any

try:
    from opentelemetry.propagate import inject as _inject
except ImportError:  # the extra `otel` is not installed: there is no trace to continue
    inject: Callable[[dict[str, str]], Any] | None = None
else:
    inject = _inject


def trace_context() -> dict[str, str]:
    """The headers from this process's propagators: by default `traceparent` and `tracestate` of the current
    span, if there is one, and `baggage`."""
    if inject is None:
        return {}
    headers: dict[str, str] = {}
    inject(headers)
    return headers
