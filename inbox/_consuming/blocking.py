"""What the synchronous consumers share: an asynchronous one that runs in an event loop of its own."""

import asyncio
import signal
import threading
from collections.abc import Coroutine
from contextlib import nullcontext
from typing import Any, Protocol

from inbox._listening.async_listener import AsyncListener
from inbox._listening.awaited_listener import AwaitedListener
from inbox._listening.outcome import runner_of
from inbox_outbox_base.checks.options import is_coroutine_function
from inbox_outbox_base.errors.inbox import InvalidOption


class AsyncConsumer(Protocol):
    """The asynchronous consumer."""

    listener: AsyncListener | AwaitedListener

    def run(self) -> Coroutine[Any, Any, None]:
        """Take messages until the listener is stopped."""


def check_synchronous(handler: Any, other: str) -> None:
    """Raise InvalidOption unless `handler` is a synchronous function; `other` is the consumer of others."""
    if not callable(handler) or is_coroutine_function(runner_of(handler)):
        raise InvalidOption(f"handler={handler!r}: expected a synchronous function; see {other}")


def run_blocking(consumer: AsyncConsumer) -> None:
    """Run a consumer until it is stopped, or in the main thread until SIGTERM or SIGINT."""
    is_main = threading.current_thread() is threading.main_thread()
    with consumer.listener.stopping_on_sigterm(signal.SIGINT) if is_main else nullcontext():
        asyncio.run(consumer.run())
