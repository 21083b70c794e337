"""How often a message may fail."""

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from .._codes import is_transient
from .._delivery import Delivery
from .._hold import describe
from .._verdict import Outcome
from ..errors import GiveUp, LeaseLost
from .rabbit_message import failures_of


def failures_after(delivery: Delivery, error: Exception | None) -> int:
    """How often its handler has failed when it has now ended with this error; what the database or a lost
    lease did is not its fault."""
    is_failure = error is not None and not isinstance(error, LeaseLost) and not is_transient(error)
    return failures_of(delivery) + is_failure


def bounded(handler: Callable[[Delivery], Any], most: int | None) -> Callable[[Delivery], Awaitable[Outcome]]:
    """The handler, which gives up a message that has failed so often."""

    async def handle(delivery: Delivery) -> Any:
        try:
            given = handler(delivery)
            return await given if inspect.isawaitable(given) else None
        except GiveUp:
            raise
        except Exception as error:
            failures = failures_after(delivery, error)
            if most is None or failures < most or failures == failures_of(delivery):
                raise
            raise GiveUp(f"it has failed {failures} times: {describe(error)}") from error

    return handle
