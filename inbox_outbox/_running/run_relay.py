"""Runs a relay for the duration of a command, and shows its counts."""

import gc
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal, TypedDict

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

import outbox
from inbox import Event, EventKind, PurgeService
from inbox_outbox._operating.progress import ProgressLine
from inbox_outbox_base.words.counted import counted
from outbox import Publisher, Relay

from .log import telling
from .serving import LOGGERS, Exports

_LAST_BATCH = 10.0
"""Seconds in which a batch of a purge can end; if it does not, the database rolls it back."""
_LOOK = 0.2
"""Seconds between checks whether the outbox is drained."""


@dataclass(slots=True)
class SendCounts:
    """The outcomes of a relay's sends."""

    sent: int = 0
    refused: int = 0
    not_taken: int = 0
    """Failed sends, and sends without an answer: these messages are retried."""
    seconds: float = 0.0
    purged: int = 0
    """Messages of the inbox that were deleted, with `purge_every`."""
    failed_purges: int = 0


class _Counting:
    """Counts a relay's events, and shows the counts."""

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show
        self._begun = time.monotonic()
        self.counts = SendCounts()

    def __call__(self, event: Event) -> None:
        counts = self.counts
        if event.kind is EventKind.SENT:
            counts.sent += event.count
        elif event.kind is EventKind.REFUSED:
            counts.refused += event.count
        elif event.kind in (EventKind.UNAVAILABLE, EventKind.UNKNOWN):
            counts.not_taken += event.count
        counts.seconds = time.monotonic() - self._begun
        self._show(
            f"{counted(counts.sent, 'message')} sent, {counts.sent / max(counts.seconds, 1e-3):,.0f}/s"
        )


class RelayOptions(TypedDict):
    """The options of a `Relay` that the commands give it."""

    name: str | None
    schema: str | None
    batch: int
    lease: timedelta
    poll: timedelta
    max_attempts: int
    after_dead: Literal["continue", "hold"]
    keep_sent: timedelta | None
    listen_url: str | None
    give_up_after: timedelta | None


def run(
    engine: Engine,
    publisher: Publisher,
    options: RelayOptions,
    exports: Exports,
    *,
    until_drained: bool = False,
    timeout: timedelta | None = None,
    purge_every: timedelta | None = None,
) -> SendCounts:
    """Relay until SIGTERM or Ctrl-C; or until no message can be sent, or the time is over. With
    `purge_every`, purge the inbox beside that."""
    line = ProgressLine("relaying")
    counting = _Counting(line.show)
    relay = Relay(engine, publisher, on_event=[counting, *exports.hooks], **options)
    purging = None
    if purge_every is not None:
        purging = PurgeService(engine, purge_every, schema=options["schema"])
        purging.check()
    gc.collect()
    gc.freeze()  # otherwise each full collection would look at everything imported
    begun = time.monotonic()
    logged = telling("outbox.relay", "inbox.purge", *LOGGERS)
    with line, logged, relay.stopping_on_sigterm(signal.SIGINT), exports.serving(relay):
        if until_drained:
            seconds = None if timeout is None else timeout.total_seconds()
            with _stopping_when_drained(engine, relay, options["schema"], seconds):
                relay.run()
        else:
            with nullcontext() if purging is None else _beside(purging):
                relay.run()
    counting.counts.seconds = time.monotonic() - begun
    if purging is not None:
        counting.counts.purged, counting.counts.failed_purges = purging.rows, purging.failures
    return counting.counts


@contextmanager
def _beside(purging: PurgeService) -> Iterator[None]:
    """Purge in a thread of its own."""
    thread = threading.Thread(target=purging.run, name="inbox purge", daemon=True)
    thread.start()
    try:
        yield
    finally:
        purging.stop()
        thread.join(_LAST_BATCH)


@contextmanager
def _stopping_when_drained(
    engine: Engine, relay: Relay, schema: str | None, timeout: float | None
) -> Iterator[None]:
    ended = threading.Event()
    deadline = None if timeout is None else time.monotonic() + timeout

    def watch() -> None:
        while not ended.wait(_LOOK):
            if (deadline is not None and time.monotonic() >= deadline) or _is_drained(engine, schema):
                relay.stop()
                return

    watcher = threading.Thread(target=watch, name="drain", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


def _is_drained(engine: Engine, schema: str | None) -> bool:
    try:
        return outbox.is_drained(engine, schema=schema)
    except SQLAlchemyError:  # the relay waits for the database, too
        return False
