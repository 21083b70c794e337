"""Deliver webhooks to a handler of an inbox."""

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from operator import attrgetter
from typing import Any, Unpack

from inbox._consuming.journal import MINUTE, ConsumerJournal
from inbox._listening.async_listener import AsyncListener
from inbox._listening.awaited_listener import AwaitedListener
from inbox._listening.handler_counts import flush_async
from inbox._listening.options import BY_KEY, ListenerOptions, check_names
from inbox._listening.outcome import Action, Decision, Outcome, runner_of
from inbox_outbox_base.brokers.webhook.signing import WebhookSecrets
from inbox_outbox_base.brokers.webhook.wire import LARGEST
from inbox_outbox_base.checks import options
from inbox_outbox_base.checks.options import is_coroutine_function
from inbox_outbox_base.errors import blame
from inbox_outbox_base.errors.inbox import InvalidOption
from inbox_outbox_base.monitoring.events import Hook, Hooks
from inbox_outbox_base.monitoring.tracing import Tracing
from inbox_outbox_base.words.incoming import Delivery

from .request import Receive, Scope, UnusableRequest, delivery_in

_log = logging.getLogger("inbox.webhook")
_SOON = 1
"""Seconds after which to send again what was not tried."""
_LONGEST = 86_400
_AT_ONCE = 8
_LAST_WORDS = 5.0
"""Seconds after `grace` in which the last answers are sent."""

Send = Callable[[dict[str, Any]], Awaitable[None]]


class WebhookReceiver:
    """An ASGI application that takes webhooks, and answers with success once the handler's inbox has
    committed.

    No message is lost: a sender that gets no answer, or another one, sends it again, and the inbox recognises
    the duplicate by its id. What an outbox sends arrives with its key, headers, content type and time. Other
    programs that sign as Standard Webhooks describes are understood, too.

    A request is read and answered without the handler if its signature is not of one of the secrets, its time
    is more than five minutes off, or its body is too large. Messages with the same key run one after the
    other, as far as one receiver has them at the same time.

    - acknowledged: 204.
    - in flight, or not run because of the database or the inbox, or because the receiver stops: 503.
    - failed in its handler: 500. Both with Retry-After.
    - what no delivery can change, such as a mismatch: 422, with the verdict; or with `dead_letter`, 204 once
      that has stored it.

    Args:
        handler: a function of a `Delivery` that returns an `Outcome`, such as one decorated by an inbox. A
            synchronous one runs in threads, an asynchronous one in the event loop.
        secrets: the sender's secret as Standard Webhooks has it, "whsec_" and Base64 of 24 to 64 bytes; or
            several, while it is being replaced. Give each sender a secret and a receiver of its own.
        largest: the most bytes of a body; larger ones get 413.
        waiting: the most requests that run or wait for their turn; more get 503.
        timeout: how long a body may take to arrive, in seconds or as `timedelta`.
        dead_letter: a function of a `Delivery` and its `Decision` that stores what no delivery can change;
            asynchronous if the handler is. None: the sender keeps it.
        on_event: a function of an `inbox.Event`, or several. With `inbox.otel.OtelEvents`, each message has a
            span.
        concurrency: as for `Listener`; by default 8.
        key: as for `Listener`; by default the message's key.
        backoff: as for `Listener`; its delays become Retry-After.
        grace: as for `Listener`.
        too_old: as for `Listener`.

    Raises:
        InvalidOption: an argument cannot be used. The error repeats no secret.
    """

    def __init__(
        self,
        handler: Callable[[Delivery], Outcome] | Callable[[Delivery], Awaitable[Outcome]],
        secrets: str | Sequence[str],
        *,
        largest: int = LARGEST,
        waiting: int = 100,
        timeout: float | timedelta = 10,
        dead_letter: Callable[[Delivery, Decision], Any] | None = None,
        on_event: Hook | Iterable[Hook] | None = None,
        **listener: Unpack[ListenerOptions],
    ) -> None:
        if not callable(handler):
            raise InvalidOption(f"handler={handler!r}: expected a function of a message")
        check_names(listener)
        given: ListenerOptions = {**BY_KEY, "concurrency": _AT_ONCE, **listener}
        is_async = is_coroutine_function(runner_of(handler))
        if is_coroutine_function(dead_letter) and not is_async:
            raise InvalidOption(
                f"dead_letter={dead_letter!r}: expected a synchronous function, as the handler is"
            )
        self.listener: Any = (AsyncListener if is_async else AwaitedListener)(
            attempt=attrgetter("attempt"), dead_letter=dead_letter, **given
        )
        self.listener.tracing = Tracing(Hooks(on_event), "processing")
        self._secrets = WebhookSecrets(secrets)
        self._largest = options.count("largest", largest)
        self._most = options.count("waiting", waiting)
        self._timeout = options.seconds("timeout", timeout, positive=True)
        self._handler = handler
        self._held = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._told: dict[str, float] = {}
        self._journal = ConsumerJournal(_log, "receiver of webhooks")

    @property
    def stopped(self) -> bool:
        """Whether `stop` has been called."""
        return bool(self.listener.stopped)

    def stop(self) -> None:
        """Take no more messages: further requests get 503, as do those that wait for their turn, and running
        ones have `grace` to finish. Returns immediately; you can call it from any thread and signal handler.

        A server that supports ASGI's lifespan calls it when it shuts down, unless the receiver is a route of
        an application that does not pass this on.
        """
        self.listener.stop()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, as ASGI describes it."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            status, text, headers = await self._answer(scope, receive)
            await send(
                {
                    "type": "http.response.start",
                    "status": status,
                    "headers": [
                        (name.encode(), value.encode())
                        for name, value in {**headers, "content-length": str(len(text.encode()))}.items()
                    ],
                }
            )
            await send({"type": "http.response.body", "body": text.encode()})
        else:
            await send({"type": "websocket.close"})

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            event = await receive()
            if event["type"] == "lifespan.startup":
                self._journal.say("starts")
                await send({"type": "lifespan.startup.complete"})
            elif event["type"] == "lifespan.shutdown":
                await self._finish()
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def _finish(self) -> None:
        self.stop()
        with suppress(TimeoutError):
            async with asyncio.timeout(self.listener.grace + _LAST_WORDS):
                await self._idle.wait()
        await flush_async(self._handler)
        self._journal.say("has stopped")

    async def _answer(self, scope: Scope, receive: Receive) -> tuple[int, str, dict[str, str]]:
        """Status, text and headers of the answer."""
        if scope["method"] != "POST":
            return 405, "expected POST", {"allow": "POST"}
        try:
            self._check_room()
            message = await delivery_in(
                scope, receive, self._secrets, largest=self._largest, limit=self._timeout
            )
            self._check_room()
        except UnusableRequest as error:
            self._tell(error)
            return error.status, str(error), _later(_SOON) if error.status == 503 else {}
        self._held += 1
        self._idle.clear()
        try:
            (decision,) = await self.listener.decide([message], self._handler)
        except Exception:  # noqa: BLE001 - no message is to blame, and the sender has to know
            _log.exception("message %r cannot be handled", message.id)
            return 503, "it cannot be handled", _later(_SOON)
        finally:
            self._held -= 1
            if not self._held:
                self._idle.set()
        self._journal.count([decision])
        self._journal.summarise()
        return answer_to(decision)

    def _check_room(self) -> None:
        if self.stopped:
            raise UnusableRequest(503, "the receiver stops")
        if self._held >= self._most:
            raise UnusableRequest(503, f"{self._most} messages are waiting")

    def _tell(self, error: UnusableRequest) -> None:
        """Log it, but not more than once a minute: anybody can send a request."""
        text, now = str(error), time.monotonic()
        if now >= self._told.get(text, 0.0):
            self._told[text] = now + MINUTE
            _log.warning("a request got %d: %s", error.status, text)


def answer_to(decision: Decision) -> tuple[int, str, dict[str, str]]:
    """The answer that tells a sender what was decided. It says nothing about the reason: that is in the log,
    and senders may be others' programs."""
    outcome = decision.outcome
    if decision.action is Action.ACK:
        return 204, "", {}
    if decision.action is Action.DEAD_LETTER:
        return 422, str(outcome.verdict) if outcome is not None else "", {}
    if outcome is None:
        return 503, "it has not run", _later(_SOON)
    if outcome.error is not None and blame.is_failure(outcome.error):
        return 500, "it has failed", _later(decision.delay)
    return 503, "not now", _later(decision.delay)


def _later(delay: float) -> dict[str, str]:
    return {"retry-after": str(min(max(_SOON, math.ceil(delay)), _LONGEST))}
