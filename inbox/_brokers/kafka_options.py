"""What a consumer of Kafka may be told, and how often it tries a message."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from .. import _options
from .._codes import is_transient
from .._delivery import Delivery
from .._verdict import Outcome
from ..errors import GiveUp, InvalidOption

Handler = Callable[[Delivery], Outcome]

_DEFAULTS = {
    "auto.offset.reset": "earliest",  # what was written before the first start counts as well
    "enable.auto.commit": False,
}
_LONGEST_POLL = 300_000


def settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """The caller's settings, and the defaults of those that he left out."""
    if not config.get("group.id"):
        raise InvalidOption("config: expected a group.id")
    automatic = config.get("enable.auto.commit", False)
    if str(automatic).lower() != "false":
        raise InvalidOption(
            f"enable.auto.commit={automatic!r}: expected False, or messages are committed that are not done"
        )
    return {**_DEFAULTS, **config}


def check_grace(grace: float, settings: Mapping[str, Any]) -> None:
    """A consumer that gives a partition away does not poll while it waits for the running message."""
    longest = float(settings.get("max.poll.interval.ms", _LONGEST_POLL)) / 1_000
    if grace >= longest:
        raise InvalidOption(f"grace={grace:g}: expected less than max.poll.interval.ms ({longest:g} s)")


def bounded(handler: Handler, max_attempts: int | None) -> Handler:
    """The handler, which gives up a message that has failed so often, unless its inbox counts for itself."""
    if inspect.iscoroutinefunction(getattr(handler, "outcome", handler)):
        raise InvalidOption(f"handler={handler!r}: expected one that is not asynchronous")
    if max_attempts is None:
        return handler
    _options.count("max_attempts", max_attempts)
    if hasattr(handler, "outcome"):
        return handler

    @functools.wraps(handler)
    def handle(delivery: Delivery) -> Outcome:
        try:
            return handler(delivery)
        except Exception as error:
            if delivery.attempt < max_attempts or is_transient(error):
                raise
            raise GiveUp(f"it has failed {delivery.attempt} times: {error}") from error

    return handle
