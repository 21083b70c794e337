"""What a handler says about itself: its effects outside the database, and its steps."""

import inspect
import threading
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection
from typing import Any, TypeVar, overload

from ._lines import line_of

T = TypeVar("T")


class _Channel:
    """Tells the kit about a mark, and waits until it says to go on."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()

    def tell(self, *what: Any) -> None:
        with self._lock:
            self._connection.send(what)
            self._connection.recv()


_channel: _Channel | None = None
"""None everywhere but in a process of the kit: there, a mark does nothing."""


def listen_to(connection: Connection) -> None:
    """Send this process's marks to the kit from now on."""
    global _channel
    _channel = _Channel(connection)


def point(name: str) -> None:
    """Mark a step of the handler, at which the kit can kill it, freeze it or let a duplicate overtake it.

    Outside the kit it does nothing.

    Args:
        name: what the report calls it.
    """
    if _channel is not None:
        _channel.tell("point", name, line_of(inspect.currentframe()))


@overload
def effect(name: str, *, key: str | None = None) -> None: ...
@overload
def effect(
    name: str, call: Callable[..., T], *arguments: Any, key: str | None = None, **options: Any
) -> T: ...
def effect(
    name: str,
    call: Callable[..., Any] | None = None,
    *arguments: Any,
    key: str | None = None,
    **options: Any,
) -> Any:
    """Call a function that has an effect outside the database, such as a request to another service, and
    count it if it returns.

    The kit kills the handler right before the call and right after it. Outside the kit, the function is
    called and nothing else. If it returns an awaitable, so does this: the effect counts when that has ended.

    Args:
        name: what the report calls the effect.
        call: the function. Without one this line itself is the effect, as in a test's replacement of a
            service.
        *arguments: what the function is called with.
        key: the idempotency key that the call passes on. Calls with one key count once, because their
            receiver drops repeats. Without a key every call counts.
        **options: what the function is called with by name.
    """
    if _channel is None:
        return call(*arguments, **options) if call else None
    channel, line = _channel, line_of(inspect.currentframe())
    channel.tell("begins", name, line)
    result = call(*arguments, **options) if call else None
    if inspect.isawaitable(result):
        return _awaited(channel, name, key, result)
    channel.tell("done", name, key)
    return result


async def _awaited(channel: _Channel, name: str, key: str | None, work: Awaitable[Any]) -> Any:
    result = await work
    channel.tell("done", name, key)
    return result
