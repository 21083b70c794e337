"""OpenTelemetry's metrics for Prometheus, without a collector:

    metrics = PrometheusMetrics()
    relay = Relay(engine, publisher, on_event=OtelEvents(meter_provider=metrics.provider))
    OverviewGauges(engine, meter_provider=metrics.provider)
    with serve_probes("0.0.0.0:8080", relay, metrics=metrics):
        relay.run()

Needs the extra `prometheus`.
"""

import threading

from inbox_outbox_base.checks.extras import brought_by

with brought_by("prometheus"):
    from opentelemetry.exporter.prometheus import PrometheusMetricReader
    from opentelemetry.sdk.metrics import MeterProvider
    from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

__all__ = ["PrometheusMetrics"]


class PrometheusMetrics:
    """A meter provider whose metrics can be read as text: the `metrics` of `serve_probes`."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        reader = PrometheusMetricReader(registry=self._registry, scope_info_enabled=False)
        self.provider = MeterProvider([reader], shutdown_on_exit=False)
        """For `OtelEvents` and `OverviewGauges`."""
        self._lock = threading.Lock()

    def __call__(self) -> tuple[bytes, str]:
        """The metrics now, and their content type."""
        with self._lock:  # the reader mixes up answers to two clients
            return generate_latest(self._registry), CONTENT_TYPE_LATEST
