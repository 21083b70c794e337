"""A publisher that chooses among publishers by topic."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from inbox_outbox_base.calls.signals import FAILURES, as_failure
from inbox_outbox_base.words.outgoing import Envelope, Outcome, Unavailable

from .fan_out import FanOut, Part, SettledDeliveries
from .publisher import Answer, Publisher
from .routes import Routes

log = logging.getLogger("outbox.router")


class RouterBase:
    """The common part of both routers: the routes, and what their publishers declare."""

    _is_async: bool

    def __init__(self, routes: Mapping[str, Any]) -> None:
        self._routes: Routes[Any] = Routes(routes, is_async=self._is_async)
        self._settled = SettledDeliveries()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._routes.names})"

    @property
    def ordered(self) -> bool:
        """Whether all publishers keep the order of each key themselves."""
        return self._routes.ordered

    @property
    def concurrent(self) -> bool:
        """Whether all publishers take several batches at the same time."""
        return self._routes.concurrent

    @property
    def timeout(self) -> float | None:
        """Seconds after which `send` has certainly returned; for several publishers of one route, the sum.
        None if some publisher has no limit."""
        return self._routes.timeout

    def begin_no_more(self) -> None:
        """Call `begin_no_more` of all publishers that have it."""
        for publisher in self._routes.publishers:
            if callable(method := getattr(publisher, "begin_no_more", None)):
                method()

    def _without_route(self, batch: Sequence[Envelope]) -> list[Outcome]:
        names = self._routes.names
        return [Unavailable(f"no route for topic {each.topic!r}; there are {names}") for each in batch]


class Router(RouterBase):
    """A `Publisher` that sends each message to the publisher whose pattern matches its topic.

    In a pattern, `*` stands for any characters, dots included, or none. The topic's exact name wins over a
    pattern. Of several patterns, the one with the most characters besides `*` wins; if they have as many, the
    first. A message without a route is `Unavailable`: it waits until a relay with a route for it runs.

    With several publishers for one pattern, each message is sent to all of them, one after the other, with
    one id. It is `Accepted` once all have accepted it. Until then it is sent again only to those that have
    neither accepted nor refused it, as far as this process remembers: after a crash it is sent to all again,
    with the same id. While one of them takes nothing, the topic waits for all of them.

    Args:
        routes: publishers by pattern; a list or tuple for several.

    Raises:
        InvalidOption: `routes` is empty, or has something that is not a publisher.
    """

    _is_async = False

    def __init__(self, routes: Mapping[str, Publisher | Sequence[Publisher]]) -> None:
        super().__init__(routes)

    def check(self, lease: float) -> None:
        """Check all publishers for a lease of this many seconds.

        Raises:
            UnsafeBroker: a publisher's settings break the guarantee.
        """
        for publisher in self._routes.publishers:
            if callable(method := getattr(publisher, "check", None)):
                method(lease)

    def send(self, batch: Sequence[Envelope]) -> Iterable[Answer]:
        """Send a batch of one topic; outcome i belongs to message i, unless the topic's only publisher
        answers in pairs."""
        publishers = self._routes.of(batch[0].topic) if batch else ()
        if not publishers:
            return self._without_route(batch)
        if len(publishers) == 1:
            answers: Iterable[Answer] = publishers[0].send(batch)
            return answers
        fan_out = FanOut(batch, publishers, self._settled)
        for part in fan_out.parts():
            _send(part)
        return fan_out.outcomes()

    def close(self) -> None:
        """Close all publishers, also if one of them raises."""
        with ExitStack() as closing:
            for publisher in self._routes.publishers:
                if callable(method := getattr(publisher, "close", None)):
                    closing.callback(method)


def _send(part: Part) -> None:
    try:
        for answer in part.publisher.send(part.batch()):
            part.answers.append(answer)
            if part.is_answered_too_often:
                break
    except FAILURES as error:
        failed(part, as_failure(error))


def failed(part: Part, error: Exception) -> None:
    """Note what a publisher raised."""
    log.error("%s failed", type(part.publisher).__name__, exc_info=error)
    part.error = error
