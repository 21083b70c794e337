"""Handlers between the begin and the end of a span."""

import inspect
from collections.abc import Callable
from typing import Any

from inbox_outbox_base.monitoring.tracing import Tracing

Handler = Callable[[Any], Any]


def traced(handler: Handler, tracing: Tracing) -> Handler:
    """The handler of a synchronous listener."""

    def call(message: Any) -> Any:
        end = tracing.begin(message)
        try:
            outcome = handler(message)
        except BaseException as error:
            end(None, error)
            raise
        end(outcome, None)
        return outcome

    return call


def traced_async(handler: Handler, tracing: Tracing) -> Handler:
    """The handler of an asynchronous listener."""

    async def call(message: Any) -> Any:
        end = tracing.begin(message)
        try:
            given = handler(message)
            outcome = await given if inspect.isawaitable(given) else given
        except BaseException as error:
            end(None, error)
            raise
        end(outcome, None)
        return outcome

    return call
