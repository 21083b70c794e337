"""One batch on its way to SQS."""

import queue
import threading
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from typing import Any

from inbox_outbox_base.brokers.sqs.client import ask
from inbox_outbox_base.brokers.sqs.message import entry_of, size_of
from inbox_outbox_base.brokers.sqs.queue import SMALLEST_LIMIT, Queue
from inbox_outbox_base.calls import clock
from inbox_outbox_base.words.outgoing import (
    ACCEPTED,
    Accepted,
    Envelope,
    Outcome,
    Refused,
    Unavailable,
    Unknown,
)

from .answers import may_be_a_messages_fault, outcome_of_entry, outcome_of_error
from .links import QueueLinks

_MOST_ENTRIES = 10
"""The most messages in one request, as SQS allows."""
_MOST_REQUESTS = 8
"""The most requests of a batch at the same time."""

Entries = dict[int, dict[str, Any]]
"""Messages of one request, by their place in the batch."""


class SQSSending:
    """Sends the messages of a batch, ten in a request, by threads that end with it.

    Args:
        last_start: the time, by `clock.now`, after which no request begins.
        end: the time when requests without an answer are given up.
    """

    def __init__(
        self, links: QueueLinks, batch: Sequence[Envelope], *, last_start: float, end: float
    ) -> None:
        self._links = links
        self._batch = batch
        self._last_start = last_start
        self._end = end
        self._lock = threading.Lock()
        self._requests: deque[Entries] = deque()
        self._begun: set[int] = set()
        """Places whose request has begun."""
        self._is_over = False
        self._arrived: queue.SimpleQueue[dict[int, Outcome]] = queue.SimpleQueue()
        self.begins = True
        """Whether it may begin further requests."""
        self.has_failed = False
        """Whether a message was neither accepted nor refused."""

    def answers(self) -> Generator[tuple[int, Outcome]]:
        """Send, and yield places and outcomes as the answers arrive."""
        missing = set(range(len(self._batch)))
        self._start(self._begin)
        try:
            while missing:
                try:
                    some = self._arrived.get(timeout=max(0.0, self._end - clock.now()))
                except queue.Empty:
                    some = self._given_up(missing)
                missing -= some.keys()
                self.has_failed |= not all(isinstance(each, Accepted | Refused) for each in some.values())
                yield from some.items()
        finally:
            self._stop(missing)

    def _given_up(self, missing: set[int]) -> dict[int, Outcome]:
        with self._lock:
            self._is_over = True
            begun = set(self._begun)
        return {
            place: Unknown("no answer within the time limit")
            if place in begun
            else Unavailable("no time was left to send it")
            for place in missing
        }

    def _stop(self, missing: set[int]) -> None:
        """Begin nothing more, and wait for what has begun as long as there is time."""
        with self._lock:
            self._is_over = True
            waiting = missing & self._begun
        while waiting and (left := self._end - clock.now()) > 0:
            try:
                waiting -= self._arrived.get(timeout=left).keys()
            except queue.Empty:
                return

    def _start(self, work: Any, *arguments: Any) -> None:
        # A daemon: a program that ends does not wait for a server that hangs.
        threading.Thread(target=work, args=arguments, name="outbox sqs", daemon=True).start()

    def _begin(self) -> None:
        """Find the queue, and start a thread for each request, up to the limit."""
        try:
            found = self._links.queue(self._batch[0].topic)
            if not isinstance(found, Queue):
                self._arrived.put(dict.fromkeys(range(len(self._batch)), found))
                return
            refused, self._requests = self._divided(found)
        except Exception as error:  # noqa: BLE001 - nothing was sent, and somebody waits for an outcome
            reason = Unavailable(f"not sent: {type(error).__name__}: {error}")
            self._arrived.put(dict.fromkeys(range(len(self._batch)), reason))
            return
        self._arrived.put(refused)
        for _ in range(min(len(self._requests), _MOST_REQUESTS) - 1):
            self._start(self._work, found)
        self._work(found)

    def _divided(self, found: Queue) -> tuple[dict[int, Outcome], deque[Entries]]:
        """The outcomes of what cannot be sent, and the requests for the rest."""
        refused: dict[int, Outcome] = {}
        requests: deque[Entries] = deque()
        size, most = 0, max(found.largest, SMALLEST_LIMIT)
        for place, envelope in enumerate(self._batch):
            try:
                entry = entry_of(envelope, found)
            except ValueError as error:
                refused[place] = Refused(str(error))
                continue
            size += size_of(entry)
            if not requests or len(requests[-1]) == _MOST_ENTRIES or size > most:
                requests.append({})
                size = size_of(entry)
            requests[-1][place] = entry
        return refused, requests

    def _work(self, found: Queue) -> None:
        for entries in self._taken():
            try:
                self._send(found, entries)
            except Exception as error:  # noqa: BLE001 - somebody waits for an outcome
                self._arrived.put(dict.fromkeys(entries, outcome_of_error(error)))

    def _taken(self) -> Iterator[Entries]:
        """The requests that this thread sends."""
        while True:
            with self._lock:
                if self._is_over or not self._requests:
                    return
                entries = self._requests.popleft()
                reason = self._reason_not_to_begin()
                if reason is None:
                    self._begun.update(entries)
            if reason is None:
                yield entries
            else:
                self._arrived.put(dict.fromkeys(entries, Unavailable(reason)))

    def _reason_not_to_begin(self) -> str | None:
        if not self.begins:
            return "not sent: the relay is stopping"
        return "no time was left to send it" if clock.now() > self._last_start else None

    def _send(self, found: Queue, entries: Entries) -> None:
        try:
            answer = ask(
                self._links.client().send_message_batch,
                QueueUrl=found.url,
                Entries=[{"Id": str(place), **each} for place, each in entries.items()],
            )
        except Exception as error:
            if len(entries) == 1 or not may_be_a_messages_fault(error):
                raise
            self._send_one_by_one(found, entries)
            return
        outcomes: dict[int, Outcome] = dict.fromkeys(entries, Unknown("SQS's answer does not name it"))
        outcomes |= {int(each["Id"]): ACCEPTED for each in answer.get("Successful", ())}
        outcomes |= {int(each["Id"]): outcome_of_entry(each) for each in answer.get("Failed", ())}
        self._arrived.put(outcomes)

    def _send_one_by_one(self, found: Queue, entries: Entries) -> None:
        """Some servers refuse a whole request because of one message."""
        with self._lock:
            self._begun.difference_update(entries)
            self._requests.extend({place: entry} for place, entry in entries.items())
