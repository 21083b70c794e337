"""Direct delivery to handlers in this process passes the conformance suite for publishers."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import pytest

from inbox import Delivery, Outcome, Verdict
from outbox import AsyncDirectDelivery, DirectDelivery, Envelope
from outbox.testing import PublisherSuite


class TestDirectDelivery(PublisherSuite):
    """The topic is a handler, which keeps what it receives."""

    cannot: ClassVar[Mapping[str, str]] = {
        "test_a_fork": "a forked process has handlers of its own",
        "test_a_missing_topic": "the topics are those of the program, and nobody can add one to it",
    }

    @pytest.fixture(autouse=True)
    def _handlers(self) -> None:
        self.taken: dict[str, list[Delivery]] = {"one": [], "other": []}
        self.unused = [*self.taken]

    def _take(self, message: Delivery) -> Outcome:
        self.taken[message.topic].append(message)
        return Outcome(Verdict.NEW)

    def publisher(self) -> DirectDelivery:
        return DirectDelivery(dict.fromkeys(self.taken, self._take))

    def new_topic(self) -> str:
        return self.unused.pop()

    def received(self, topic: str, count: int) -> Sequence[Delivery]:
        return self.taken[topic]

    def refused(self, topic: str) -> Envelope:
        return replace(self.envelope(topic), topic="nowhere")


class TestAsyncDirectDelivery(TestDirectDelivery):
    """The same for AsyncDirectDelivery: handlers are tasks."""

    async def _take(self, message: Delivery) -> Outcome:  # type: ignore[override]
        return TestDirectDelivery._take(self, message)

    def publisher(self) -> AsyncDirectDelivery:  # type: ignore[override]
        return AsyncDirectDelivery(dict.fromkeys(self.taken, self._take))
