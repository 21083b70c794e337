"""The interface of the transports between steps, and the transport without a broker."""

from contextlib import AbstractContextManager, nullcontext
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

    def opened(self) -> AbstractContextManager[object]:
        """Create what the transport needs, and remove it at the end."""
        ...

    def roles(self, url: URL, downstream: Remote) -> list[Role]:
        """The processes between outbox and steps."""
        ...

    def waiting(self) -> int:
        """Messages that are neither in the outbox nor with a worker."""
        ...

    def dead(self) -> int:
        """The broker's dead letters."""
        ...


@dataclass(frozen=True, slots=True)
class Direct:
    """The relays run the steps themselves."""

    name: str = "no broker"

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
