"""The relay loop; subclasses supply waiting and publishing."""

import inspect
import logging
import math
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from threading import Lock
from typing import Any, Generic, TypeVar

from sqlalchemy import URL, Connection, Engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from inbox import Backoff
from inbox_outbox_base.calls.signals import stopping
from inbox_outbox_base.databases.taking import at_level
from inbox_outbox_base.errors.outbox import InvalidOption, OutboxError
from inbox_outbox_base.errors.secrets import reason
from inbox_outbox_base.monitoring.events import Hook
from inbox_outbox_base.monitoring.life_signs import Probe
from inbox_outbox_base.transactions.durability import look
from inbox_outbox_base.words.outgoing import Envelope
from outbox._publishers.publisher import AsyncPublisher, Publisher
from outbox._relaying.sending.batch import Choice
from outbox._relaying.sending.flight import Flight
from outbox._relaying.sending.lanes import MOST_FLIGHTS, TopicLanes
from outbox._waking.listen_connector import listen_connector_of
from outbox._waking.waiting import WakeUp

from .in_flight import Flights
from .journal import RelayJournal
from .lease import RelayLease
from .rounds import Retired, Rounds
from .settings import AfterDead, RelaySettings
from .signs import RelaySigns
from .transactions import TRIES, TROUBLE, Surroundings, Transactions, passes

E = TypeVar("E")
P = TypeVar("P", bound=Publisher | AsyncPublisher)
T = TypeVar("T")

_log = logging.getLogger("outbox.relay")
_PATIENCE = 0.5
_BEFORE_READING_ON = 0.02
"""Seconds in which most sends end. Messages read ahead during that time must be read again before they are
sent."""
_LAST_TRIES = 5
"""How often the last transaction is tried, without long pauses: a deadlock may have ended it."""


class RelayLoop(ABC, Generic[E, P]):
    """The state of one relay, and its loop, written synchronously.

    A subclass supplies waiting and publishing; the asynchronous one runs all of this inside SQLAlchemy's
    greenlet.
    """

    _is_async: bool
    _wake_up: WakeUp

    def __init__(
        self,
        engine: E,
        publisher: P,
        *,
        name: str | None = None,
        schema: str | None = None,
        buckets: int | None = None,
        batch: int = 1_000,
        lease: float | timedelta = 30,
        poll: float | timedelta = 1,
        max_attempts: int = 16,
        backoff: Backoff | None = None,
        after_dead: AfterDead = "continue",
        keep_sent: float | timedelta | None = None,
        listen_url: str | URL | None = None,
        give_up_after: float | timedelta | None = None,
        on_event: Hook | Iterable[Hook] | None = None,
    ) -> None:
        own = self._own(engine)
        if own.get_execution_options().get("schema_translate_map"):
            raise InvalidOption(
                "engine: it has a schema_translate_map; give a relay its schema with schema=, or on MySQL "
                "and MariaDB an engine of that database"
            )
        self._settings = RelaySettings(
            publisher,
            name=name,
            schema=schema,
            buckets=buckets,
            batch=batch,
            lease=lease,
            poll=poll,
            max_attempts=max_attempts,
            backoff=backoff,
            after_dead=after_dead,
            keep_sent=keep_sent,
            listen_url=listen_url,
            give_up_after=give_up_after,
            on_event=on_event,
        )
        self._publisher: Any = publisher
        send = self._publisher.send
        if (inspect.iscoroutinefunction(send) or inspect.isasyncgenfunction(send)) is not self._is_async:
            kind = "an asynchronous" if self._is_async else "a synchronous"
            raise InvalidOption(
                f"publisher={type(publisher).__name__}: {type(self).__name__} needs {kind} one"
            )
        listen_url = self._settings.listen_url
        if listen_url is not None and own.dialect.name != listen_url.get_backend_name():
            raise InvalidOption(
                f"listen_url: {listen_url.get_backend_name()}, but the engine uses {own.dialect.name}"
            )
        self._listen_connector = listen_connector_of(own, listen_url)
        self._lanes = TopicLanes(self._settings.batch, MOST_FLIGHTS if self._settings.concurrent else 1)
        self._rounds = Rounds(self._settings, own.dialect.name, self._lanes)
        self._engine = at_level(own, self._rounds.own_isolation)
        around = Surroundings(
            committed=self._rounds.committed,
            is_stopped=lambda: self._is_stopped,
            pause=self._rest,
            aside=self._aside,
            remembers=lambda: self._rounds.remembers,
        )
        self._transactions = Transactions(self._engine, self._settings.tables, around)
        retiring = at_level(own, self._rounds.retiring_isolation)
        self._retiring = Transactions(retiring, self._settings.tables, around)
        self._journal = RelayJournal(self._settings.name, self._settings.hooks)
        self._is_checked = False
        self._is_stopped = False
        self._is_leaving = False
        self._lease = RelayLease(self._rounds, self._settings, self._transactions)
        self._flights = Flights(self._settings, self._lanes, self._lease, self._wake_up, self._start)
        self._signs = RelaySigns(self._settings, self._rounds, self._transactions, self._lanes)
        self._relayed = 0
        self._running = Lock()
        self._finds_others = True
        """Whether the last look found messages to send beside the batches that were being sent."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(name={self._settings.name!r})"

    @property
    def stopped(self) -> bool:
        """Whether `stop` has been called."""
        return self._is_stopped

    def stop(self) -> None:
        """Finish the current batch and start no other, for good: run again, the relay sends nothing. Returns
        immediately; may be called from any thread and from a signal handler. Calling it again changes
        nothing."""
        self._is_stopped = True
        begin_no_more = getattr(self._publisher, "begin_no_more", None)  # `DirectDelivery` has it
        if begin_no_more is not None:
            begin_no_more()
        self._wake_up.wake()

    def probe(self) -> Probe:
        """Say how the relay is; any thread may ask. See `serve_probes`.

        It is live while its loop has turned within twice the lease, and ready while it is in the group of
        relays, its lease holds, and its last transaction has committed. Topics that the broker rejects are
        named, and change neither.
        """
        return self._signs.look(is_stopping=self._is_stopped)

    def stopping_on_sigterm(self, *also: signal.Signals) -> AbstractContextManager[None]:
        """While the block runs, SIGTERM and the signals in `also` call `stop`; afterwards the previous
        handlers are restored.

        Raises:
            ValueError: this is not the main thread; only that may handle signals.
        """
        return stopping(self.stop, *also)

    @abstractmethod
    def _own(self, engine: E) -> Engine:
        """The synchronous side of the engine.

        Raises:
            InvalidOption: the engine is of another kind.
        """

    @abstractmethod
    def _start(self, flight: Flight) -> None:
        """Send a batch in another thread or task."""

    @abstractmethod
    def _abandon(self) -> None:
        """Interrupt the batches that are being sent, as far as that is possible."""

    @abstractmethod
    def _hand_over(self, batch: list[Envelope]) -> Iterable[Any]:
        """Pass a batch to the publisher."""

    def _finish(self, result: Any) -> Any:
        """The result of a publisher's function, awaited if needed."""
        return result

    @abstractmethod
    def _sleep(self, seconds: float) -> None:
        """Wait, and go on waiting if the relay is stopped."""

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Around a run: another one, in a thread, a task or the process that this one was forked from, would
        have the same buckets.

        Raises:
            InvalidOption: the relay is running.
        """
        if not self._running.acquire(blocking=False):
            raise InvalidOption(f"{self!r} is running; make another one for each thread and each process")
        if self._is_stopped:
            _log.warning("%r was stopped before, and sends nothing: make another one", self)
        self._signs.begin()
        try:
            yield
        finally:
            self._signs.end()
            self._running.release()

    def _run_once(self) -> int:
        self._check()
        self._relayed = 0
        self._lanes.wake()
        with self._leaving(TRIES):
            self._send_all()
            if not self._is_stopped and self._recheck(self._rounds.sample):
                self._send_all()
            if (error := self._rounds.refusal) is not None:
                raise error
        return self._relayed

    def _send_all(self) -> None:
        """Send until nothing is left that can be sent now."""
        while not self._is_stopped:
            if not self._turn(TRIES):
                if not self._flights:
                    break
                self._await_outcomes(math.inf)

    def _run(self) -> None:
        self._journal.say("starts: from %s to %s", self._transactions.place, type(self._publisher).__name__)
        look(self._engine)
        try:
            with self._leaving(_LAST_TRIES):
                while not self._is_stopped:
                    if not self._turn(None) and not self._is_stopped:
                        self._await_outcomes(self._rounds.seconds_idle())
        except TROUBLE as error:
            if not (self._is_stopped and passes(error)):
                raise
        finally:
            self._journal.say("has stopped")

    def _check(self) -> None:
        """Let the publisher reject settings that would break its guarantee."""
        if not self._is_checked:
            check = getattr(self._publisher, "check", None)
            if check is not None:
                self._finish(check(self._settings.lease))
            self._is_checked = True

    def _turn(self, tries: int | None) -> bool:
        """Run one transaction and start the batches that it chose; return whether to repeat this at once."""
        begun = time.monotonic()
        choice = self._next(tries)
        if choice.letters:
            self._wake_up.found()
        if self._flights:
            self._finds_others = bool(choice.letters)
        self._rounds.launch(choice)
        self._flights.report.exhausted += choice.exhausted
        for letters in choice.batches:
            self._flights.launch(letters)
        if choice.has_more and self._flights:
            # It reads on for messages of other topics and keys, at half of its speed; it waits longer if the
            # last look found nothing, for example behind a busy key.
            least = 0.0 if self._finds_others else _BEFORE_READING_ON
            self._await_outcomes(max(least, time.monotonic() - begun), bursts=False)
        return choice.has_more or bool(choice.exhausted)

    def _next(self, tries: int | None) -> Choice:
        """Write the outcomes that have arrived, and choose the next batches."""
        while True:
            self._signs.beat()
            self._flights.collect()
            try:
                if not self._rounds.has_joined:
                    self._do(self._rounds.join, tries)
                    self._journal.say(
                        "is connected to %s (epoch %d)", self._transactions.place, self._rounds.epoch
                    )
                if self._rounds.look_is_due:
                    self._look()
                if self._rounds.recheck_is_due:
                    self._recheck(self._rounds.recheck)
                if self._rounds.retirement_is_due:
                    self._retire()
                if self._rounds.series_is_due:
                    self._keep_series()
                choice = self._write_and_choose(tries)
            except Retired as error:
                self._lost(error)
            else:
                self._finish_outcomes()
                self._journal.owns(len(self._rounds.buckets))
                self._journal.summarise()
                return choice

    def _write_and_choose(self, tries: int | None) -> Choice:
        """Run the round; if the database refuses a row, again, with its writes apart from each other."""
        if self._rounds.unwritten_is_due:
            self._flights.report.add(self._rounds.take_unwritten())
        try:
            return self._do(self._round, tries)
        except DBAPIError as error:
            if not self._rounds.may_go_on(error):
                raise
        return self._do(self._round, tries)

    def _look(self) -> None:
        """Look at the tables again, in a separate transaction: the relay goes on if that fails.

        Raises:
            UnsafeDatabase: a table cannot keep a promise any more, or hides rows.
            UnsafeSequence: the sequence of message numbers is cached per session, or is behind the messages.
        """
        try:
            self._journal.overlooked(self._do(self._rounds.look, 1))
        except TROUBLE as error:
            _log.warning("the catalogue could not be read, retrying in a minute: %s", reason(error))

    def _recheck(self, look: Callable[[Connection], int]) -> int:
        """Look for overlooked messages in a separate transaction: the relay goes on if that exceeds a time
        limit."""
        try:
            overlooked = self._do(look, 1)
        except (SQLAlchemyError, OSError, OutboxError) as error:
            self._journal.not_looked(error)
            return 0
        self._journal.overlooked(overlooked)
        return overlooked

    def _retire(self) -> None:
        """Delete old buckets in a separate transaction, if that is possible now."""
        try:
            self._retiring.do(self._rounds.retire, 1)
        except (SQLAlchemyError, OSError, OutboxError) as error:
            _log.warning("old buckets could not be deleted, retrying: %s", reason(error))

    def _keep_series(self) -> None:
        """Take samples in a separate transaction: the relay goes on if that fails."""
        try:
            self._do(self._rounds.keep_series, 1)
        except (SQLAlchemyError, OSError, OutboxError) as error:
            _log.warning("the outbox could not be sampled, retrying in a minute: %s", reason(error))

    def _round(self, connection: Connection) -> Choice:
        return self._rounds.round(connection, self._flights.report)

    def _fly(self, flight: Flight) -> None:
        flight.fly(self._hand_over, self._may_go_on, self._settings.tracing)

    def _may_go_on(self) -> bool:
        """Whether a batch may go on with its next messages."""
        if self._is_stopped or self._is_leaving:
            return False
        if not self._settings.concurrent:  # the loop itself sends
            self._signs.beat()
        if not self._lease.may_send():
            _log.warning("nothing is sent: a send could outlast the lease")
            self._pause(_PATIENCE)
            return False
        return True

    def _await_outcomes(self, seconds: float, *, bursts: bool = True) -> None:
        if self._flights.wait(seconds, self._rounds.buckets, bursts=bursts):
            self._rounds.next_tend = 0.0

    def _finish_outcomes(self) -> None:
        """Count and log the outcomes that have been committed.

        Raises:
            BaseException: an interruption that `send` raised.
        """
        report = self._flights.written()
        self._rounds.committed_outcomes(report)
        self._relayed += len(report.accepted)
        self._journal.settled(report)
        self._flights.raise_interruption()

    @contextmanager
    def _leaving(self, tries: int) -> Iterator[None]:
        """Afterwards wait for the batches that are being sent, write their outcomes, and give up the
        buckets."""
        self._is_leaving = False
        try:
            yield
        except BaseException:
            self._abandon()
            raise
        finally:
            self._is_leaving = True
            try:
                self._flights.end()
                if self._rounds.has_joined:
                    self._leave(tries)
            finally:
                self._forget()

    def _leave(self, tries: int) -> None:
        self._flights.report.add(self._rounds.take_unwritten())
        try:
            self._do(lambda connection: self._rounds.end(connection, self._flights.report), tries)
        except Retired as error:
            self._lost(error)
        except TROUBLE as error:
            if isinstance(error, DBAPIError) and self._rounds.may_go_on(error):
                self._leave(tries)
                return
            _log.warning(
                "the relay could not leave, so its buckets are free when its lease expires: %s", reason(error)
            )
        else:
            self._finish_outcomes()
            if left := self._rounds.take_unwritten().messages:
                _log.error("%d messages may be sent again: what became of them could not be recorded", left)

    def _lost(self, error: Retired) -> None:
        """Start over as a new relay, after the batches that are being sent have ended: the new relay could
        get the same buckets, and send the same messages."""
        self._flights.end()
        self._flights.report.add(self._rounds.take_unwritten())
        unrecorded = len(self._flights.report.accepted)
        _log.warning("%s; it could not record %d sent messages, which may be sent again", error, unrecorded)
        self._forget()

    def _forget(self) -> None:
        self._flights.forget()
        self._rounds.forget()
        self._transactions.close()

    def _do(self, work: Callable[[Connection], T], tries: int | None) -> T:
        return self._transactions.do(work, tries, is_round=True)

    def _aside(self, work: Callable[[], T]) -> T:
        """Call a function that may block for some seconds."""
        return work()

    def _rest(self, seconds: float) -> None:
        """Pause before a transaction is tried again."""
        self._signs.beat()
        self._pause(seconds)

    def _pause(self, seconds: float) -> None:
        """Wait until `seconds` have passed or the relay is stopped."""
        end = time.monotonic() + seconds
        while not self._is_stopped and (left := end - time.monotonic()) > 0:
            self._sleep(min(left, 0.1))
