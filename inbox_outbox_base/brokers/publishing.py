"""What a relay needs of a broker."""

from collections.abc import Awaitable, Iterable, Sequence
from typing import Protocol, runtime_checkable

from inbox_outbox_base.words.outgoing import Envelope, Outcome


@runtime_checkable
class Publisher(Protocol):
    """Hands messages to a broker; anyone can write one.

    In a batch there is at most one message of each key, so a publisher may send all of them at once and wait
    for the answers afterwards. An answer is as strong as the broker's promise: `Accepted` once the message
    cannot get lost any more, `Unavailable` and `Refused` only if it has certainly not been taken, `Unknown`
    for whatever lies between. A message without an answer, because `send` raised, counts as `Unknown`.

    A publisher may also have

    - `timeout`: seconds after which `send` has surely returned; a relay's lease has to be longer;
    - `check(lease)`: called once before the first `send`; raises `UnsafeBroker`, naming the setting, if the
      broker or its client cannot keep the promise within a lease of so many seconds;
    - `begin_no_more()`: called when the relay is stopped, also from signal handlers: what a `send` that is on
      its way has not begun may be answered with `Unavailable`;
    - `close()`: gives back what `send` has opened; called by whoever made the publisher.
    """

    def send(self, batch: Sequence[Envelope]) -> Iterable[Outcome]:
        """Send a batch; outcome i belongs to envelope i."""
        ...


@runtime_checkable
class AsyncPublisher(Protocol):
    """`Publisher` for an `AsyncRelay`: the same, awaited; `check` may be a coroutine or not."""

    def send(self, batch: Sequence[Envelope]) -> Awaitable[Iterable[Outcome]]:
        """Send a batch; outcome i belongs to envelope i."""
        ...
