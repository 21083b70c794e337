"""The batches that a relay is sending, and the outcomes that have arrived."""

import math
import time
from collections.abc import Callable, Sequence

from inbox_outbox_base.databases.letter import Letter
from outbox._relaying.sending.flight import Flight
from outbox._relaying.sending.lanes import TopicLanes
from outbox._waking.waiting import WakeUp

from .lease import RelayLease
from .report import Report
from .settings import RelaySettings

_LONGEST = 3_600.0
"""The most seconds that a thread can wait at a time."""
_LINGER = 0.02
"""While a batch is being sent, its first outcomes wait for this many seconds for others, so that one
transaction writes them."""


class Flights:
    """Starts batches, and collects their outcomes until they are written. The function `start` sends a batch
    in another thread or task."""

    def __init__(
        self,
        settings: RelaySettings,
        lanes: TopicLanes,
        lease: RelayLease,
        wake_up: WakeUp,
        start: Callable[[Flight], None],
    ) -> None:
        self._settings = settings
        self._lanes = lanes
        self._lease = lease
        self._wake_up = wake_up
        self._start = start
        self.report = Report()
        """The outcomes that have arrived, until they are written."""
        self._failure: BaseException | None = None
        """An interruption, to be raised once the outcomes are written."""

    def __bool__(self) -> bool:
        return bool(self._lanes.flights)

    def launch(self, letters: list[Letter]) -> None:
        """Send a batch; the lease is renewed meanwhile."""
        # Any thread calls `nudge`: when a batch has its first outcome to write, and when it is over.
        flight = Flight(
            letters,
            ordered=self._settings.ordered,
            give_up_after=self._settings.give_up_after,
            arrived=self._wake_up.nudge,
        )
        self._lease.is_sending = True
        try:
            # Before the start: if an interruption comes after it, the relay has to wait for the batch's end.
            self._lanes.launch(flight)
            self._start(flight)
        except BaseException:
            flight.cancel()
            raise

    def wait(self, seconds: float, buckets: Sequence[int], *, bursts: bool = True) -> bool:
        """Wait until the relay is woken for these buckets, a batch is over, a batch's first outcomes have
        waited long enough for others, or `seconds` have passed; return whether the relay has chores."""
        end = time.monotonic() + seconds
        while True:
            left = max(0.0, min(end - time.monotonic(), _LONGEST))
            if self._wake_up.wait(left, buckets, bursts=bursts):
                return True
            flights = self._lanes.flights
            since = min((flight.has_news_since for flight in flights), default=math.inf)
            if since == math.inf or any(flight.is_over for flight in flights):
                return False
            end = min(end, since + _LINGER)
            if time.monotonic() >= end:
                return False

    def collect(self) -> None:
        """Take the outcomes that have arrived, and forget the batches that are over."""
        for flight in self._lanes.flights:
            is_over = flight.is_over  # read before the outcomes are taken: none can come after it
            self.report.add(flight.collect())
            if is_over:
                self.report.unsent += flight.unanswered()
                self._failure = self._failure or flight.failure
                self._lanes.land(flight)
        self._lease.is_sending = bool(self)

    def end(self) -> None:
        """Wait until all batches are over, and take their outcomes."""
        while not all(flight.is_over for flight in self._lanes.flights):
            self._wake_up.wait(_LONGEST, ())
        self.collect()

    def written(self) -> Report:
        """Return the outcomes, which have been committed, and collect new ones from now on."""
        report, self.report = self.report, Report()
        return report

    def raise_interruption(self) -> None:
        """Raise what interrupted a send: a SystemExit, or a cancellation."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def forget(self) -> None:
        """Forget the outcomes and the batches; all batches are over."""
        self.report, self._failure = Report(), None
        self._lanes.drop_flights()
        self._lease.is_sending = False
