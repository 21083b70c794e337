"""The ways from step to step, and the first of them: no broker at all."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

from sqlalchemy import URL

from examples.order_chain import worker
from examples.order_chain.crew import Role
from examples.order_flow.remote import Remote

EACH = 2
"""How many relays there are, and how many consumers."""


class Transport(Protocol):
    """How messages get from the outbox to the steps."""

    @property
    def name(self) -> str:
        """In the table's heading."""
        ...

    def opened(self) -> AbstractContextManager[object]:
        """Makes what the transport needs, and removes it at the end."""
        ...

    def roles(self, url: URL, downstream: Remote) -> list[Role]:
        """The processes between outbox and steps."""
        ...

    def waiting(self) -> int:
        """Messages that are neither in the outbox nor in a worker's hands."""
        ...

    def dead(self) -> int:
        """Dead letters of the broker."""
        ...


@dataclass(frozen=True, slots=True)
class Direct:
    """The relays run the steps themselves."""

    name: str = "no broker"

    def opened(self) -> AbstractContextManager[object]:
        """There is nothing to make."""
        return nullcontext()

    def roles(self, url: URL, downstream: Remote) -> list[Role]:
        """Relays."""
        return [Role("relay", worker.direct_relay, lambda: (url, downstream))] * EACH

    def waiting(self) -> int:
        """There is no other place than the outbox."""
        return 0

    def dead(self) -> int:
        """Those are in the outbox."""
        return 0
