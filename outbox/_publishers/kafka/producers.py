"""Kafka's producers: one for each send that is under way."""

import threading
import time
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

_IDLE = 60.0
"""Seconds after which an unused producer is closed."""
_FRESH = 60.0
"""Seconds after which a topic's metadata is requested again. librdkafka drops metadata that it could not
refresh for 15 minutes; it would then assign messages to partitions during the flush, and a part could leave
in two requests."""
_NEW, _PAUSE = 1.0, 0.1
"""Seconds that a new topic has until the broker knows it, and between questions."""
_LEAST = 0.01
"""Seconds; the client takes less than 0 for no limit."""
_PASSING = {KafkaError.LEADER_NOT_AVAILABLE, KafkaError.UNKNOWN_TOPIC_OR_PART}


class LentProducer:
    """A producer that one send at a time has to itself."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.producer = Producer(settings)
        self.used = 0.0
        self._asked: dict[str, float] = {}

    def fault_of(self, topic: str, timeout: float) -> KafkaError | None:
        """Ask a broker about a topic; why nothing can be written to it now, or None."""
        if time.monotonic() < self._asked.get(topic, -_FRESH) + _FRESH:
            return None
        begun = time.monotonic()
        while True:
            fault = self._ask(topic, max(_LEAST, begun + timeout - time.monotonic()))
            if fault is None:
                self._asked[topic] = time.monotonic()
            elif fault.code() in _PASSING and time.monotonic() < begun + min(timeout / 2, _NEW):
                time.sleep(_PAUSE)
                continue
            return fault

    def leaderless(self, topic: str, timeout: float) -> set[int]:
        """Ask a broker which partitions of a topic have no leader now."""
        try:
            found = self.producer.list_topics(topic, timeout=timeout).topics[topic]
        except KafkaException:
            return set()
        return {number for number, partition in found.partitions.items() if partition.leader < 0}

    def _ask(self, topic: str, timeout: float) -> KafkaError | None:
        try:
            found = self.producer.list_topics(topic, timeout=timeout).topics[topic]
        except KafkaException as error:
            no_answer: KafkaError = error.args[0]
            return no_answer
        except RuntimeError as error:  # the client's word for a name that is too long
            return KafkaError(KafkaError.TOPIC_EXCEPTION, str(error))
        fault: KafkaError | None = found.error
        if fault is None and all(partition.leader < 0 for partition in found.partitions.values()):
            return KafkaError(KafkaError.LEADER_NOT_AVAILABLE, "no partition has a leader")
        return fault

    def close(self, seconds: float) -> None:
        """Send nothing more; takes about this long if a broker hangs."""
        self.producer.purge()
        self.producer.flush(seconds)


class Producers:
    """As many producers as there are sends at the same time; thread-safe.

    Each send has one to itself: it can purge and close it without a loss to other sends.
    """

    def __init__(self, settings: dict[str, Any], closing: float) -> None:
        self._settings = settings
        self._closing = closing
        """How many seconds closing a producer may take."""
        self._lock = threading.Lock()
        self._idle: list[LentProducer] = []
        self._lent: set[LentProducer] = set()

    def open(self) -> None:
        """Open a producer for the first send, which checks the settings; raises KafkaException."""
        self.give_back(self.take())

    def take(self) -> LentProducer:
        """A producer, to be given back."""
        with self._lock:
            lent = self._idle.pop() if self._idle else LentProducer(self._settings)
            self._lent.add(lent)
        return lent

    def give_back(self, lent: LentProducer, *, is_usable: bool = True) -> None:
        """Keep a producer for the next send, or close it: it may still hold messages."""
        lent.used = time.monotonic()
        with self._lock:
            was_closed = lent not in self._lent
            self._lent.discard(lent)
            over = [each for each in self._idle if each.used < lent.used - _IDLE]
            self._idle = [each for each in self._idle if each not in over]
            (self._idle if is_usable and not was_closed else over).append(lent)
        for each in over:
            each.close(self._closing)

    def close(self) -> None:
        """Close all producers, also those of sends under way: what has no answer is not sent any more."""
        with self._lock:
            over = [*self._idle, *self._lent]
            self._idle.clear()
            self._lent.clear()
        for each in over:
            each.close(self._closing)
