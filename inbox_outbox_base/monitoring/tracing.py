"""Spans around a send or a handler: some hooks can begin and end them."""

import logging
from collections.abc import Callable
from typing import Any

from .events import Hooks

_log = logging.getLogger("inbox.events")

End = Callable[..., None]
"""Ends what was begun, in the same thread or task."""


class Tracing:
    """Calls those hooks that have a method of this name; false if none has one.

    Args:
        hooks: all hooks.
        method: the name. The method begins something, and returns a function that ends it.
    """

    def __init__(self, hooks: Hooks, method: str) -> None:
        self._begins: list[Callable[..., End]] = hooks.methods(method)

    def __bool__(self) -> bool:
        return bool(self._begins)

    def begin(self, *about: Any) -> End:
        """Begin all; the function that is returned ends all, the last one first. Errors are logged."""
        ends: list[End] = []
        for begin in self._begins:
            try:
                ends.append(begin(*about))
            except Exception:  # noqa: BLE001 - monitoring must not hurt what it watches
                _log.exception("on_event= failed")

        def end(*outcome: Any) -> None:
            for each in reversed(ends):
                try:
                    each(*outcome)
                except Exception:  # noqa: BLE001
                    _log.exception("on_event= failed")

        return end
