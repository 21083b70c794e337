"""Which publishers a topic's messages go to."""

import inspect
import re
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

from inbox_outbox_base.checks import outbox_options
from inbox_outbox_base.errors.outbox import InvalidOption

from .publisher import is_concurrent, keeps_order

P = TypeVar("P")


class Routes(Generic[P]):
    """Patterns of topics, each with its publishers, and the declarations of all publishers combined."""

    def __init__(self, routes: Mapping[str, P | Sequence[P]], *, is_async: bool) -> None:
        if not isinstance(routes, Mapping) or not routes:
            raise InvalidOption(f"routes={routes!r:.80}: expected a mapping of topics to publishers")
        self._exact: dict[str, tuple[P, ...]] = {}
        patterns: list[tuple[str, tuple[P, ...]]] = []
        for pattern, given in routes.items():
            outbox_options.topics(pattern)
            publishers = _publishers(pattern, given, is_async=is_async)
            self._exact[pattern] = publishers
            if "*" in pattern:
                patterns.append((pattern, publishers))
        # The sort is stable: of patterns with equally many characters, the first one given comes first.
        patterns.sort(key=lambda each: -len(each[0].replace("*", "")))
        self._patterns = [(_matcher(pattern), publishers) for pattern, publishers in patterns]
        self.names = ", ".join(map(repr, routes))

    def of(self, topic: str) -> tuple[P, ...]:
        """The topic's publishers; none if no pattern matches."""
        if topic in self._exact:
            return self._exact[topic]
        return next((publishers for match, publishers in self._patterns if match.fullmatch(topic)), ())

    @property
    def publishers(self) -> list[P]:
        """All of them, each once, in the order of the patterns."""
        found: dict[int, P] = {}
        for publishers in self._exact.values():
            found.update((id(each), each) for each in publishers)
        return list(found.values())

    @property
    def ordered(self) -> bool:
        """Whether all keep the order of each key themselves."""
        return all(map(keeps_order, self.publishers))

    @property
    def concurrent(self) -> bool:
        """Whether all take several batches at the same time."""
        return all(map(is_concurrent, self.publishers))

    @property
    def timeout(self) -> float | None:
        """The longest time for a batch, in seconds; None if some publisher does not say."""
        limits = [[_timeout(each) for each in publishers] for publishers in self._exact.values()]
        if any(limit is None for each in limits for limit in each):
            return None
        return max(sum(limit or 0.0 for limit in each) for each in limits)


def _publishers(pattern: str, given: Any, *, is_async: bool) -> tuple[Any, ...]:
    publishers = tuple(given) if isinstance(given, list | tuple) else (given,)
    if not publishers:
        raise InvalidOption(f"routes[{pattern!r}]: expected at least one publisher")
    for each in publishers:
        send = getattr(each, "send", None)
        if not callable(send):
            raise InvalidOption(
                f"routes[{pattern!r}]={type(each).__name__}: expected an object with send(batch)"
            )
        if (inspect.iscoroutinefunction(send) or inspect.isasyncgenfunction(send)) is not is_async:
            router, kind = ("AsyncRouter", "an asynchronous") if is_async else ("Router", "a synchronous")
            raise InvalidOption(f"routes[{pattern!r}]={type(each).__name__}: {router} needs {kind} publisher")
    if len({id(each) for each in publishers}) < len(publishers):
        raise InvalidOption(f"routes[{pattern!r}]: the same publisher twice")
    return publishers


def _matcher(pattern: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, pattern.split("*"))), re.DOTALL)


def _timeout(publisher: Any) -> float | None:
    limit = getattr(publisher, "timeout", None)
    return None if limit is None else outbox_options.seconds("publisher.timeout", limit, positive=True)
