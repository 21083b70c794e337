"""The listener's options that the brokers' consumers pass on."""

from collections.abc import Callable, Hashable
from datetime import timedelta
from operator import attrgetter
from typing import Any, TypedDict

from inbox_outbox_base.checks.backoff import Backoff

from .outcome import TooOld


class ListenerOptions(TypedDict, total=False):
    """The options that all consumers share; see `Listener`."""

    concurrency: int
    key: Callable[[Any], Hashable | None] | None
    backoff: Backoff | None
    grace: float | timedelta
    too_old: TooOld


BY_KEY: ListenerOptions = {"key": attrgetter("key")}
"""By default, messages with the same key run in order."""


def check_names(given: ListenerOptions) -> None:
    """Raise TypeError for an option that consumers do not have: Python itself accepts any name here."""
    known = ListenerOptions.__annotations__
    for name in given:
        if name not in known:
            raise TypeError(f"unexpected keyword argument {name!r}; a listener's are {', '.join(known)}")
