"""`--listen`: health checks and metrics of a command, for as long as it runs."""

import logging
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated

import typer
from sqlalchemy import Engine

from inbox.probes import HasProbe, Metrics, serve_probes, systemd_watchdog
from inbox_outbox._connect import Schema
from inbox_outbox._operating.each_database import Urls, engines_at
from inbox_outbox_base.calls.signals import SignalSafeEvent, stopping
from inbox_outbox_base.monitoring.events import Hook

from .log import telling

LISTEN = (
    "Answer /live, /ready and, with the extra prometheus, /metrics at this address, such as 0.0.0.0:9464."
)
Listen = Annotated[str | None, typer.Option(help=f"{LISTEN} By default nowhere.", metavar="HOST:PORT")]

LOGGERS = ("inbox_outbox.listen", "inbox.metrics")
_log = logging.getLogger(LOGGERS[0])


@dataclass(slots=True)
class Exports:
    """What a command exports while it runs."""

    listen: str | None = None
    metrics: Metrics | None = None
    hooks: tuple[Hook, ...] = ()
    """For `on_event` of what the command runs."""

    @contextmanager
    def serving(self, *parts: HasProbe) -> Iterator[None]:
        """While the block runs, say how these are, at the address and to systemd."""
        with systemd_watchdog(*parts):
            if self.listen is None:
                yield
                return
            with serve_probes(self.listen, *parts, metrics=self.metrics) as place:
                _log.info("listens at %s", place)
                yield


@contextmanager
def exporting(listen: str | None, urls: Sequence[str], schema: str | None, system: str) -> Iterator[Exports]:
    """What to export at this address; nothing if it is None.

    Args:
        listen: HOST:PORT.
        urls: the database, or several with their names.
        schema: the PostgreSQL schema of the tables.
        system: the broker, as OpenTelemetry names it.
    """
    if listen is None:
        yield Exports()
        return
    with engines_at(urls, schema) as own:  # a busy pool does not hide how things are
        yield _exports(listen, own, schema, system)


def _exports(listen: str, engines: Mapping[str, Engine], schema: str | None, system: str) -> Exports:
    try:
        from inbox.otel import OtelEvents
        from inbox_outbox.metrics import OverviewGauges
        from inbox_outbox.prometheus import PrometheusMetrics
    except ModuleNotFoundError as error:
        _log.warning("there is no /metrics: install inbox-outbox[prometheus] (%s)", error)
        return Exports(listen)
    made = PrometheusMetrics()
    OverviewGauges(engines, schema=schema, meter_provider=made.provider)
    return Exports(listen, made, (OtelEvents(system=system, meter_provider=made.provider),))


def metrics(
    url: Urls,
    listen: Annotated[str, typer.Option(help=LISTEN, metavar="HOST:PORT")] = "127.0.0.1:9464",
    schema: Schema = None,
) -> None:
    """Export what `inbox-outbox top` shows to Prometheus, until SIGTERM or Ctrl-C.

    For programs that export nothing themselves; a relay does so with --listen.
    """
    ended = SignalSafeEvent()
    with (
        telling(*LOGGERS),
        exporting(listen, url, schema, "inbox") as exports,
        stopping(ended.set, signal.SIGINT),
        exports.serving(),
    ):
        ended.wait(None)
