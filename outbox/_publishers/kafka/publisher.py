"""Publish an outbox's messages to Kafka, through confluent-kafka's producer (extra `kafka`)."""

import logging
from collections.abc import AsyncIterator, Generator, Mapping, Sequence
from contextlib import aclosing
from datetime import timedelta
from functools import partial
from typing import Any

from inbox_outbox_base.calls import clock
from inbox_outbox_base.checks import outbox_options
from inbox_outbox_base.checks.extras import brought_by
from inbox_outbox_base.words.outgoing import Envelope, Outcome
from outbox._publishers.publisher import check_lease
from outbox._publishers.sends_in_threads import PublisherInThreads

from . import producer_settings

with brought_by("kafka"):
    from .answers import outcome_of_unsent
    from .parts import parts_of
    from .producers import Producers
    from .sending import Answers, KafkaSending

_log = logging.getLogger("outbox.kafka")
_SHARE_FOR_CLEANING_UP = 0.1


class KafkaPublisher:
    """A `Publisher` that says `Accepted` once all replicas in sync have the message.

    Messages of one key are written in the order in which they are sent: no message is written before an
    earlier one of its key. A message may be written twice, with the same id: after an `Unknown` outcome, or
    when a relay dies before it has recorded the answer.

    Once `send` has returned, the client sends nothing more of that batch. A broker that hangs may still write
    messages that were on the network before; their outcome was `Unknown`.

    Thread-safe. Each running send has a producer to itself, with its connections; a producer that has been
    unused for a minute is closed.

    Args:
        config: settings of confluent-kafka's `Producer`, at least "bootstrap.servers". By default `acks` is
            "all", `enable.idempotence` True and `retries` 5. `linger.ms` has no effect: a batch leaves when
            it is complete.
        timeout: the longest time that `send` takes, in seconds or as `timedelta`; shorter than the relay's
            lease.

    Raises:
        InvalidOption: `timeout` cannot be used.
    """

    def __init__(self, config: Mapping[str, Any], *, timeout: float | timedelta = 10) -> None:
        self.timeout = outbox_options.seconds("timeout", timeout, positive=True)
        self._settings = {"logger": _log, **producer_settings.filled_in(config, self.timeout)}
        self._producers = Producers(self._settings, self.timeout * _SHARE_FOR_CLEANING_UP)
        self._leaderless = set[str]()
        """Topics with a partition that had no leader."""
        self.ordered = producer_settings.keeps_order(self._settings)
        """Whether a batch may hold several messages of a key: if `enable.idempotence` is on."""

    def check(self, lease: float) -> None:
        """Check that the settings keep the guarantee within a lease of this many seconds.

        It does not connect to Kafka: a relay starts even if the broker is down.

        Raises:
            UnsafeBroker: names the setting, its value, and why.
            KafkaException: the client does not know the setting or its value.
        """
        check_lease(self.timeout, lease)
        producer_settings.check(self._settings)
        self._producers.open()

    def send(self, batch: Sequence[Envelope]) -> Generator[tuple[int, Outcome]]:
        """Send a batch of one topic, and yield each message's place and outcome as the answers arrive. Errors
        that Kafka reports are outcomes, not exceptions. Closing the iterator ends the send."""
        for answers in self._answers(batch):
            yield from answers

    def close(self) -> None:
        """Close the connections; `send` opens new ones. Messages without an answer are not sent any more."""
        self._producers.close()

    def _answers(self, batch: Sequence[Envelope]) -> Generator[Answers]:
        if not batch:
            return
        topic, deadline = batch[0].topic, clock.now() + self.timeout * (1 - _SHARE_FOR_CLEANING_UP)
        lent, is_usable = self._producers.take(), True
        try:
            # Nothing is sent until a broker has answered, so without an answer the outcome is Unavailable.
            fault = lent.fault_of(topic, self.timeout / 2)
            if fault is not None:
                outcome = outcome_of_unsent(fault)
                yield [(place, outcome) for place in range(len(batch))]
                return
            parts = parts_of(batch, producer_settings.limits(self._settings))
            ask = partial(lent.leaderless, topic)
            before = ask(self.timeout / 2) if topic in self._leaderless else set[int]()
            if not before:
                self._leaderless.discard(topic)
            sending, is_usable = KafkaSending(lent.producer, batch, parts, deadline, before, ask), False
            yield from sending.answers()
            if sending.leaderless:
                self._leaderless.add(topic)
            # If not, the next send asks a broker first: while no broker answers, no outcome is unknown.
            is_usable = sending.is_usable
        finally:
            self._producers.give_back(lent, is_usable=is_usable)


class AsyncKafkaPublisher(PublisherInThreads[KafkaPublisher]):
    """`KafkaPublisher` for an `AsyncRelay`: the same arguments and promises, its sends in threads.

    A cancelled send ends before the cancellation is raised: none of its messages is sent after that.
    """

    def __init__(self, config: Mapping[str, Any], *, timeout: float | timedelta = 10) -> None:
        super().__init__(KafkaPublisher(config, timeout=timeout), "outbox kafka")
        self.ordered = self._publisher.ordered

    async def send(self, batch: Sequence[Envelope]) -> AsyncIterator[tuple[int, Outcome]]:
        """As `KafkaPublisher.send`."""
        answers = self._publisher._answers(batch)  # noqa: SLF001 - one class in two forms
        async with aclosing(self._threads.iterate(answers)) as several:
            async for some in several:
                for answer in some:
                    yield answer
