"""What operators watch, as OpenTelemetry's gauges. Needs the extra `otel`:

    OverviewGauges(engine)

The numbers are those of `inbox.overview` and `outbox.overview`, so they agree with the command line.
"""

import threading
from collections.abc import Iterable, Mapping
from datetime import timedelta
from functools import partial
from weakref import WeakSet

from sqlalchemy import Engine

from inbox.errors import InvalidOption
from inbox_outbox_base.checks import options
from inbox_outbox_base.checks.extras import brought_by

from ._operating.gauges import GAUGES, Numbers
from ._operating.sampling import OverviewSampler

with brought_by("otel"):
    from opentelemetry import metrics
    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation

__all__ = ["OverviewGauges"]

_LONGEST = 9.0
"""The SDK waits ten seconds for all gauges."""
_LEAST = 1.0
"""The fewest seconds between two looks: one scrape reads all gauges."""
_making = threading.Lock()
_with_gauges: WeakSet[MeterProvider] = WeakSet()


class OverviewGauges:
    """Observable gauges of one database, or of several.

    While a database does not answer, its gauges are absent and `db.up` is 0. A number that is not exact has
    the attribute `estimated`. Labels are bounded: 20 topics, and the 100 consumers of an overview.

    The gauges begin with this call, and end with the meter provider.

    Args:
        engines: the Engine of the database; or several with a name each, which becomes the attribute
            `database`. Give it an engine of its own if your pool is often exhausted.
        schema: the PostgreSQL schema of the tables.
        every: how long an answer is used again, in seconds or as `timedelta`: however many readers and
            scrapes there are, this process asks a database no more often. At least one second.
        timeout: how long to wait for a database, in seconds or as `timedelta`; at most 9 seconds.
        meter_provider: None uses the global one; it can have these gauges only once.

    Raises:
        InvalidOption: an argument is invalid, or the meter provider has these gauges already.
    """

    def __init__(
        self,
        engines: Engine | Mapping[str, Engine],
        *,
        schema: str | None = None,
        every: float | timedelta = 10,
        timeout: float | timedelta = 5,
        meter_provider: MeterProvider | None = None,
    ) -> None:
        named = engines if isinstance(engines, Mapping) else {"": engines}
        for name, engine in named.items():
            if not isinstance(engine, Engine) or engine.dialect.is_async:
                place = f"engines[{name!r}]" if name else "engines"
                raise InvalidOption(f"{place}={type(engine).__name__}: expected an Engine")
        seconds = options.seconds("every", every)
        if seconds < _LEAST:
            raise InvalidOption(f"every={every!r}: expected at least one second")
        patience = options.seconds("timeout", timeout, _LONGEST)
        self._samplers = {
            name: OverviewSampler(engine, schema, seconds, patience) for name, engine in named.items()
        }
        provider = meter_provider or metrics.get_meter_provider()
        with _making:
            if provider in _with_gauges:  # it would never call the functions of the others
                raise InvalidOption("meter_provider: it has these gauges already; give all engines at once")
            _with_gauges.add(provider)
        meter = metrics.get_meter("inbox_outbox", meter_provider=meter_provider)
        for each in GAUGES:
            observe = partial(self._observe, each.numbers)
            meter.create_observable_gauge(each.name, [observe], each.unit, each.about)

    def _observe(self, numbers: Numbers, _: CallbackOptions) -> Iterable[Observation]:
        for sampler in self._samplers.values():
            sampler.begin()
        for name, sampler in self._samplers.items():
            own = {"database": name} if name else {}
            for number, labels in numbers(sampler.read()):
                yield Observation(number, {**labels, **own})
