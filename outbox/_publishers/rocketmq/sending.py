"""One batch on its way to RocketMQ."""

import queue
from collections import deque
from collections.abc import Generator, Sequence
from functools import partial
from typing import Any

from inbox_outbox_base.brokers.rocketmq.client import grpc
from inbox_outbox_base.brokers.rocketmq.message import message_of
from inbox_outbox_base.calls import clock
from inbox_outbox_base.words.outgoing import Accepted, Envelope, Outcome, Refused, Unavailable, Unknown
from outbox._publishers.key_chains import Chain, chains_of

from .answers import outcome_of, outcome_of_error
from .proxies import Proxies, Route

_MOST = 100
"""The most requests without an answer at the same time."""
_SHARE_FOR_THE_CLIENT = 0.1
"""The last part of the time, in which gRPC ends the requests without an answer."""


class RocketMQSending:
    """Sends the messages of a batch, a request for each.

    Messages of one key follow one another: each leaves when the previous one has been accepted.

    Args:
        route: where they go.
        end: the time, by `clock.now`, when requests without an answer are given up.
    """

    def __init__(self, proxies: Proxies, batch: Sequence[Envelope], route: Route, end: float) -> None:
        self._proxies = proxies
        self._batch = batch
        self._route = route
        self._end = end
        self._deadline = end - (end - clock.now()) * _SHARE_FOR_THE_CLIENT
        self._chains = chains_of(batch)
        """Chains of places: each message leaves when the previous one in its chain has been accepted."""
        self._ready = deque(self._chains)
        self._sent: dict[int, tuple[Any, Chain]] = {}
        """By place, the requests without an answer."""
        self._arrived: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.has_failed = False
        """Whether a message was neither accepted nor refused."""

    def answers(self) -> Generator[tuple[int, Outcome]]:
        """Send, and yield places and outcomes as the answers arrive."""
        try:
            while self._ready or self._sent:
                while self._ready and len(self._sent) < _MOST:
                    yield from self._start(self._ready.popleft())
                if self._sent:
                    yield from self._wait()
        finally:
            self._cancel()

    def _start(self, chain: Chain) -> Generator[tuple[int, Outcome]]:
        place = chain[0]
        rest = self._deadline - clock.now()
        if rest <= 0:
            yield from self._ended(chain, Unavailable("no time was left to send it"))
            return
        envelope = self._batch[place]
        try:
            message = message_of(envelope, is_fifo=self._route.is_for_group(envelope.key))
        except ValueError as error:
            yield from self._ended(chain, Refused(str(error)))
            return
        target = self._route.target(message.system_properties.message_group)
        silent = self._route.silent.get(target)
        if silent is not None:
            yield from self._ended(chain, silent)
            return
        try:
            request = self._proxies.send(target, message, rest)
        except ValueError as error:
            yield from self._ended(chain, Unavailable(f"not sent: {error}"))
            return
        self._sent[place] = (request, chain)
        request.add_done_callback(partial(self._note, place))

    def _note(self, place: int, _: object) -> None:
        self._arrived.put(place)

    def _wait(self) -> Generator[tuple[int, Outcome]]:
        try:
            place = self._arrived.get(timeout=max(0.0, self._end - clock.now()))
        except queue.Empty:
            late = Unknown("no answer within the time limit")
            for _, chain in list(self._sent.values()):
                yield from self._ended(chain, late)
            self._cancel()
            return
        request, chain = self._sent.pop(place)
        yield from self._ended(chain, self._judged(request, self._batch[place]))

    def _judged(self, request: Any, envelope: Envelope) -> Outcome:
        try:
            answer = request.result(0)
        except (grpc.RpcError, grpc.FutureCancelledError, grpc.FutureTimeoutError) as error:
            return outcome_of_error(error)
        return outcome_of(answer, envelope)

    def _ended(self, chain: Chain, outcome: Outcome) -> Generator[tuple[int, Outcome]]:
        """The outcome of a chain's first message, and of the later ones if they cannot be sent now."""
        self.has_failed |= not isinstance(outcome, Accepted | Refused)
        yield chain.popleft(), outcome
        if isinstance(outcome, Accepted):
            if chain:
                self._ready.append(chain)
            return
        for place in chain:
            yield place, Unavailable("an earlier message of its key was not accepted")

    def _cancel(self) -> None:
        for request, _ in self._sent.values():
            request.cancel()
        self._sent.clear()
