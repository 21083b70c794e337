"""The client of a publisher, and the queues that it knows."""

import os
import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from inbox_outbox_base.brokers.sqs.address import SQSAddress
from inbox_outbox_base.brokers.sqs.client import FAILURES, is_login_refused, new_client
from inbox_outbox_base.brokers.sqs.queue import Queue, find, is_name
from inbox_outbox_base.calls import clock
from inbox_outbox_base.words.outgoing import Unavailable

from .answers import outcome_of_lookup

_FRESH = 60.0
"""Seconds for which a queue is believed to be as it was, unless a send fails."""
_CONNECTIONS = 100

_inherited: list[Any] = []
"""A fork's copies of its parent's clients: closing them here would disturb the parent."""


class QueueLinks:
    """One client, made when it is first needed; thread-safe. A forked process makes its own.

    Args:
        patience: seconds in which a connection must be made, and in which a request must be answered.
        queues: the queue of a topic, where it has another name.
        largest: the most bytes in a message; None: as the queue says.
    """

    def __init__(
        self, address: SQSAddress, patience: float, queues: Mapping[str, str], largest: int | None
    ) -> None:
        self._address = address
        self._patience = patience
        self._names = dict(queues)
        self._largest = largest
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._client: Any = None
        self._queues: dict[str, tuple[Queue, float]] = {}

    def client(self) -> Any:
        """The client."""
        self._leave_inherited()
        with self._lock:
            if self._client is None:
                self._client = new_client(
                    self._address, connect=self._patience, read=self._patience, connections=_CONNECTIONS
                )
            return self._client

    def queue(self, topic: str) -> Queue | Unavailable:
        """The queue of a topic, or the outcome of its messages if it cannot be found. Unless it was used
        lately, its server has just answered."""
        self._leave_inherited()
        known = self._queues.get(topic)
        if known is not None and clock.now() < known[1] + _FRESH:
            return known[0]
        if not is_name(self._name(topic)):
            return Unavailable(f"topic {topic!r}: no queue can have this name; name its queue by queues=")
        try:
            queue = self.look(topic)
        except FAILURES as error:
            if is_login_refused(error) and not self._address.access_key:
                self._client = None  # the next one looks for a login again, which may have been renewed
            return outcome_of_lookup(error, self._name(topic))
        self._queues[topic] = queue, clock.now()
        return queue

    def look(self, topic: str) -> Queue:
        """Ask for the queue of a topic.

        Raises:
            Exception: one of the client's `FAILURES`.
        """
        queue = find(self.client(), self._address, self._name(topic))
        return queue if self._largest is None else replace(queue, largest=self._largest)

    def _name(self, topic: str) -> str:
        return self._names.get(topic, topic)

    def forget(self, topic: str) -> None:
        """Before the next send, ask again: something is wrong."""
        self._queues.pop(topic, None)

    def close(self) -> None:
        """Close the connections."""
        self._leave_inherited()
        with self._lock:
            client, self._client = self._client, None
        self._queues.clear()
        if client is not None:
            client.close()

    def _leave_inherited(self) -> None:
        if self._process != os.getpid():
            _inherited.append(self._client)
            self._client, self._queues, self._process = None, {}, os.getpid()
            self._lock = threading.Lock()
