"""Deliver messages from Redis Streams to a handler of an inbox (extra `redis`)."""

from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any, Unpack

from inbox._consuming.blocking import check_synchronous, run_blocking
from inbox._listening.awaited_listener import AwaitedListener
from inbox._listening.options import ListenerOptions
from inbox._listening.outcome import Decision, Outcome
from inbox._listening.thread_pool import in_thread
from inbox_outbox_base.checks.extras import brought_by
from inbox_outbox_base.monitoring.events import Hook
from inbox_outbox_base.monitoring.life_signs import Probe
from inbox_outbox_base.words.incoming import Delivery

with brought_by("redis"):
    from .async_consumer import AsyncRedisStreamsConsumer

__all__ = ["AsyncRedisStreamsConsumer", "RedisStreamsConsumer"]


class RedisStreamsConsumer:
    """Takes the entries of a stream for a group, and acknowledges each when its handler's inbox has decided.

    No message is lost: an entry is acknowledged only after the decision. What a consumer does not settle and
    does not renew for `idle`, because it was killed or has hung, another consumer of the group takes. The
    inbox recognises the duplicates that this makes.

    In one consumer, messages with the same key run one after the other; several consumers share a stream
    without regard to keys.

    - acknowledged: it is done for this group. The entry stays in the stream; see `trim`.
    - failed in its handler: the group has it again after its delay, which a sorted set beside the stream
      keeps. Later messages of its key do not wait.
    - not run because of the database or the inbox: it stays in the consumer and runs again after its delay.
    - dead letter, such as a message that has failed `max_attempts` times: it goes where `dead_letter` says,
      and is acknowledged after it is stored there.

    Args:
        url: redis://user:password@host:6379/0, or rediss:// with TLS; as for `RedisStreamsPublisher`.
        stream: its name.
        handler: a function of a `Delivery` that returns an `Outcome`, such as one decorated by an inbox.
        group: the consumer group. Each group gets all messages.
        declare: make the stream and the group if they are missing; the group begins with the first entry.
        trim: every 30 seconds, delete the entries that all groups of the stream have acknowledged. A group
            that is made later does not get them.
        prefetch: how many unacknowledged messages to hold; by default twice the `concurrency`, at least 100.
            With slow handlers, fewer are fairer to other consumers.
        idle: how long after a crash of this consumer its messages are delivered again, in whole seconds or as
            `timedelta`. It has to be the same in all consumers of the group.
        max_attempts: a message becomes a dead letter when its handler raises in the delivery with this number
            or a later one; None: never. Errors of the inbox's own statements do not count, nor do messages
            claimed in status-table mode, which their inbox counts (`Outcome.is_failure`).
        dead_letter: a stream, which gets the message with the reason in the field "inbox", and is made if it
            is missing; or a function of a `Delivery` and its `Decision` that stores the message. None: the
            stream "<stream>.dead".
        on_event: a function of an `inbox.Event`, or several: the connection's begin, loss and return. With
            `inbox.otel.OtelEvents`, each message has a span.
        concurrency: as for `Listener`.
        key: as for `Listener`; by default the message's key.
        backoff: as for `Listener`.
        grace: as for `Listener`.
        too_old: as for `Listener`.

    Raises:
        InvalidOption: an argument cannot be used.
    """

    def __init__(
        self,
        url: str,
        stream: str,
        handler: Callable[[Delivery], Outcome],
        *,
        group: str,
        declare: bool = False,
        trim: bool = False,
        prefetch: int | None = None,
        idle: float | timedelta = 30,
        max_attempts: int | None = 16,
        dead_letter: str | Callable[[Delivery, Decision], Any] | None = None,
        on_event: Hook | Iterable[Hook] | None = None,
        **listener: Unpack[ListenerOptions],
    ) -> None:
        run: Any = handler
        check_synchronous(run, "AsyncRedisStreamsConsumer")
        self._core = _RedisStreamsInThreads(
            url,
            stream,
            run,
            group=group,
            declare=declare,
            trim=trim,
            prefetch=prefetch,
            idle=idle,
            max_attempts=max_attempts,
            dead_letter=in_thread(dead_letter) if callable(dead_letter) else dead_letter,
            on_event=on_event,
            **listener,
        )

    def run(self) -> None:
        """Take messages until `stop`, or in the main thread until SIGTERM or SIGINT.

        When Redis does not answer, or the group is gone, the consumer tries again; only the first connection
        must succeed immediately, except that the stream and the group have five seconds to be made. After a
        stop it takes no more messages, lets running messages finish within `grace`, gives the others back,
        and returns.

        Raises:
            InvalidOption: Redis refuses the login, there is no such stream or group, or the handler does not
                return an `Outcome`.
            ConnectionError: nobody answers at `url`.
        """
        run_blocking(self._core)

    def probe(self) -> Probe:
        """Say how the consumer is; any thread may ask. See `inbox.probes`.

        It is live while its loop turns, and ready while Redis answers.
        """
        return self._core.probe()

    def stop(self) -> None:
        """Stop gracefully. Returns immediately; you can call it from any thread and signal handler."""
        self._core.stop()


class _RedisStreamsInThreads(AsyncRedisStreamsConsumer):
    """The consumer for a synchronous handler."""

    _listener = AwaitedListener

    def _check(self, handler: Any) -> None:
        """`RedisStreamsConsumer` has checked the handler."""
