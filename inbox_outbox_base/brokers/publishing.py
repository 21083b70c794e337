"""The contract between a relay and a broker."""

from collections.abc import Awaitable, Iterable, Sequence
from typing import Protocol, runtime_checkable

from inbox_outbox_base.words.outgoing import Envelope, Outcome


@runtime_checkable
class Publisher(Protocol):
    """Hands messages to a broker; you can write your own.

    A batch has at most one message of each key, so a publisher can send all of them before it waits for the
    answers. An answer is as strong as the broker's promise: `Accepted` once the message can no longer be
    lost, `Unavailable` and `Refused` only if it was certainly not taken, `Unknown` for everything in between.
    A message without an answer, because `send` raised, counts as `Unknown`.

    A publisher can also have

    - `timeout`: seconds after which `send` has certainly returned; a relay's lease must be longer;
    - `check(lease)`: called once before the first `send`; raises `UnsafeBroker`, naming the setting, if the
      broker or its client cannot keep the promise within a lease of this many seconds;
    - `begin_no_more()`: called when the relay is stopped, also from signal handlers: a running `send` can
      answer `Unavailable` for messages that it has not begun;
    - `close()`: closes what `send` has opened; called by the code that made the publisher.
    """

    def send(self, batch: Sequence[Envelope]) -> Iterable[Outcome]:
        """Send a batch; outcome i belongs to envelope i."""
        ...


@runtime_checkable
class AsyncPublisher(Protocol):
    """`Publisher` for an `AsyncRelay`: the same, awaited; `check` can be a coroutine function or not."""

    def send(self, batch: Sequence[Envelope]) -> Awaitable[Iterable[Outcome]]:
        """Send a batch; outcome i belongs to envelope i."""
        ...
