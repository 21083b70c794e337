"""The transports between steps: no broker at all, or any broker."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Protocol

from sqlalchemy import URL

from examples.order_chain import worker
from examples.order_chain.crew import Role
from examples.order_flow.remote import Remote

EACH = 2
"""The number of relays, and of consumers."""


class Transport(Protocol):
    """How messages get from the outbox to the steps."""

    @property
    def name(self) -> str:
        """The name in the table's heading."""
        ...

    @property
    def restart(self) -> Callable[[], object] | None:
        """Kill the broker with kill -9 and start it again; None if there is none, or it serves others too."""
        ...

    def opened(self) -> AbstractContextManager[object]:
        """Create what the transport needs, and remove it at the end."""
        ...

    def roles(self, url: URL, downstream: Remote) -> list[Role]:
        """The processes between outbox and steps."""
        ...

    def waiting(self) -> int:
        """Messages in the broker that no consumer has acknowledged, as far as the broker tells."""
        ...

    def dead(self) -> int:
        """The broker's dead letters."""
        ...


@dataclass(frozen=True, slots=True)
class Direct:
    """The relays run the steps themselves."""

    name: str = "no broker"
    restart: None = None

    def opened(self) -> AbstractContextManager[object]:
        """Nothing to create."""
        return nullcontext()

    def roles(self, url: URL, downstream: Remote) -> list[Role]:
        """Relays."""
        return [Role("relay", worker.direct_relay, lambda: (url, downstream))] * EACH

    def waiting(self) -> int:
        """None: all waiting messages are in the outbox."""
        return 0

    def dead(self) -> int:
        """None: dead letters are in the outbox."""
        return 0


class Broker(worker.Client, Protocol):
    """A broker, and what the chain has in it."""

    def create(self) -> None:
        """Create the topics.

        Raises:
            RuntimeError: the broker does not answer.
        """
        ...

    def delete(self) -> None:
        """Delete the topics with their messages, if they exist.

        Raises:
            RuntimeError: the broker does not answer.
        """
        ...

    def waiting(self) -> int:
        """As `Transport.waiting`."""
        ...

    def dead(self) -> int:
        """The number of dead letters."""
        ...


@dataclass(frozen=True, slots=True)
class Brokered:
    """Relays publish to a broker, and consumers take from it."""

    name: str
    broker: Broker
    restart: Callable[[], object] | None = None

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Create the topics, and delete them at the end."""
        self.broker.delete()
        self.broker.create()
        try:
            yield
        finally:
            self.broker.delete()

    def roles(self, url: URL, downstream: Remote) -> list[Role]:
        """Relays, and consumers of all topics."""
        relay = Role("relay", worker.relay, lambda: (url, self.broker))
        consumer = Role("consumer", worker.consumer, lambda: (url, downstream, self.broker))
        return [relay, consumer] * EACH

    def waiting(self) -> int:
        """As the broker says."""
        return self.broker.waiting()

    def dead(self) -> int:
        """As the broker says."""
        return self.broker.dead()
