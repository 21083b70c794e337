"""The contract between a relay and a broker."""

from collections.abc import AsyncIterable, Awaitable, Iterable, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

from inbox_outbox_base.checks import outbox_options
from inbox_outbox_base.errors.outbox import InvalidOption, UnsafeBroker
from inbox_outbox_base.words.outgoing import Envelope, Outcome

Answer: TypeAlias = Outcome | tuple[int, Outcome]
"""The outcome of the next message, or of the message at that place in the batch."""


@runtime_checkable
class Publisher(Protocol):
    """Hands messages to a broker; you can write your own.

    A batch has one topic, and at most one message of each key, so a publisher can send all of them before it
    waits for the answers. `send` may be called from several threads at the same time, for different topics or
    the same one, but never for the same key. An answer is as strong as the broker's promise: `Accepted` once
    the message can no longer be lost, `Unavailable` and `Refused` only if it was certainly not taken,
    `Unknown` for everything in between. A message without an answer, because `send` raised, counts as
    `Unknown`.

    A publisher can also have

    - `concurrent = False`: then only one `send` runs at a time;
    - `ordered = True`: it keeps the order of each key itself, so a batch may have many messages of a key.
      After the first message that is not `Accepted`, the later ones of its key count as not sent, and are
      sent again after it. None of them may reach the broker before it;
    - `timeout`: seconds after which `send` has certainly returned; a relay's lease must be longer;
    - `check(lease)`: called once before the first `send`; raises `UnsafeBroker`, naming the setting, if the
      broker or its client cannot keep the guarantee within a lease of this many seconds;
    - `begin_no_more()`: called when the relay is stopped, also from signal handlers: a running `send` can
      answer `Unavailable` for messages that it has not begun;
    - `close()`: closes what `send` has opened; called by the code that made the publisher.
    """

    def send(self, batch: Sequence[Envelope]) -> Iterable[Answer]:
        """Send a batch; outcome i belongs to envelope i. Pairs of a place in the batch and an outcome can
        come in any order, and are recorded as they come."""
        ...


@runtime_checkable
class AsyncPublisher(Protocol):
    """`Publisher` for an `AsyncRelay`: the same, awaited; `check` can be a coroutine function or not."""

    def send(self, batch: Sequence[Envelope]) -> Awaitable[Iterable[Answer]] | AsyncIterable[Answer]:
        """Send a batch; outcome i belongs to envelope i. An asynchronous generator yields pairs."""
        ...


def keeps_order(publisher: Any) -> bool:
    """What the publisher declares as `ordered`.

    Raises:
        InvalidOption: neither True nor False, such as a method; a mere truthy value could break the order.
    """
    return outbox_options.flag("publisher.ordered", getattr(publisher, "ordered", False))


def is_concurrent(publisher: Any) -> bool:
    """What the publisher declares as `concurrent`.

    Raises:
        InvalidOption: neither True nor False.
    """
    return outbox_options.flag("publisher.concurrent", getattr(publisher, "concurrent", True))


def check_lease(timeout: float, lease: float) -> None:
    """Check that a send ends within a lease.

    Raises:
        UnsafeBroker: it may not.
    """
    if timeout >= lease:
        raise UnsafeBroker(f"timeout={timeout:g}: expected less than the lease of {lease:g} s")


def topic_names(topics: Sequence[str]) -> tuple[str, ...]:
    """The option `topics`.

    Raises:
        InvalidOption: not a sequence of texts.
    """
    if isinstance(topics, str) or not all(isinstance(topic, str) for topic in topics):
        raise InvalidOption(f"topics={topics!r}: expected a sequence of strings")
    return tuple(topics)
