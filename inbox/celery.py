"""Celery tasks whose messages are acknowledged when an inbox has taken them:

    @task(app, inbox.listener(dead_letter=put_away))
    def bill_order(order_id, cents):
        return bill({"order_id": order_id, "cents": cents})

Celery itself is imported by `task` only.
"""

import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from inbox._listening.listener import Listener
from inbox._listening.outcome import Action, Decision, Outcome
from inbox_outbox_base.checks import options
from inbox_outbox_base.errors.inbox import InvalidOption, TransientError

__all__ = ["task"]

_log = logging.getLogger("inbox.celery")
_REQUIRED = {
    "acks_late": True,
    "acks_on_failure_or_timeout": False,
    "acks_on_failure": False,
    "acks_on_timeout": False,
    "reject_on_worker_lost": True,
    "max_retries": None,
}
"""Without them Celery acknowledges messages of tasks that have not run, have failed or have died."""


def task(
    app: Any,
    listener: Listener,
    *,
    longest_wait: float | timedelta = 900,
    **settings: Any,
) -> Callable[[Callable[..., Outcome]], Any]:
    """Decorate a function that returns the `Outcome` of a handler of an inbox: it becomes a task of this
    Celery application, whose message is acknowledged when the listener says so.

    The task's result is the outcome's `result`. A message that was not taken, or whose function has failed,
    is published again by Celery's retry, and then acknowledged; if it cannot be published, it goes back to
    its queue. Celery's soft time limit ends an attempt and is no failure of the message. Called directly, the
    function behaves as without the decorator.

    Args:
        app: the Celery application. On RabbitMQ it needs `broker_transport_options` with
            `confirm_publish=True`: otherwise a retry may be lost after its message was acknowledged.
        listener: decides from outcomes and errors, and has `dead_letter=`, a function of the task's request
            (`.args`, `.kwargs`, `.id`, `.retries`) and the decision that stores the message elsewhere. Its
            `concurrency` and `key` have no effect.
        longest_wait: the most seconds (or a `timedelta`) until a retry. A worker holds the message meanwhile,
            so stay below RabbitMQ's `consumer_timeout` and Redis's `visibility_timeout`.
        settings: options of Celery's `app.task`, such as `name`, `queue` and `soft_time_limit`. What decides
            when a message is acknowledged, and how often it is tried, is set here.

    Raises:
        InvalidOption: an argument cannot be used; also when the application is finalized, which every worker
            does at its start, if its configuration contradicts these settings.
    """
    if not isinstance(listener, Listener):
        raise InvalidOption(f"listener={listener!r}: expected a Listener")
    if not listener.has_dead_letter:
        raise InvalidOption(
            "listener: expected one with dead_letter=, because Celery has no place for a message that no "
            "delivery can change"
        )
    for name in (*_REQUIRED, "autoretry_for"):
        if name in settings and settings[name] != _REQUIRED.get(name, ()):
            raise InvalidOption(f"{name}={settings[name]!r}: expected {_REQUIRED.get(name, ())!r}")
    from celery import Task

    seconds = options.seconds("longest_wait", longest_wait)
    base = _settled(settings.pop("base", Task), listener, seconds)
    decorated: Callable[[Callable[..., Outcome]], Any] = app.task(**{**settings, **_REQUIRED, "base": base})
    return decorated


def _settled(base: Any, listener: Listener, longest_wait: float) -> Any:
    """A class of tasks that do what the listener says."""
    from celery.exceptions import Reject, SoftTimeLimitExceeded

    class SettledTask(base):  # type: ignore[misc]
        abstract = True

        @classmethod
        def on_bound(cls, app: Any) -> None:
            _check(cls, app)
            super().on_bound(app)

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            if self.request.called_directly:
                return super().__call__(*args, **kwargs)
            try:
                decision = listener.decide_here(self.request, lambda _: self._outcome(args, kwargs))
            except Exception as error:  # noqa: BLE001 - another worker may be able to decide
                _log.warning("%s: could not be decided: %s", self.name, error, exc_info=error)
                decision = Decision(Action.RETRY, longest_wait)
            if decision.action is not Action.ACK:
                raise self._again(decision)
            return decision.outcome and decision.outcome.result

        def _outcome(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Outcome:
            try:
                outcome: Outcome = self.run(*args, **kwargs)
            except SoftTimeLimitExceeded as error:
                raise TransientError("the soft time limit has ended this attempt") from error
            return outcome

        def _again(self, decision: Decision) -> Any:
            """Publish the message again, and return the error that tells the worker so."""
            try:
                return self.retry(countdown=min(decision.delay, longest_wait), throw=False)
            except (Reject, SoftTimeLimitExceeded) as error:
                # Celery itself would let the message go.
                _log.warning("%s: back to its queue, could not be published again: %s", self.name, error)
                return Reject(str(error), requeue=True)

    return SettledTask


def _check(kind: Any, app: Any) -> None:
    """Refuse a configuration with which messages are lost; annotations of tasks may have changed it.

    Raises:
        InvalidOption: a task's setting, or the application's.
    """
    for name, expected in _REQUIRED.items():
        if (found := getattr(kind, name, expected)) != expected:
            raise InvalidOption(f"task {kind.name}: {name}={found!r}, expected {expected!r}")
    with app.connection_for_write() as connection:  # connects when it is used
        is_confirmed = connection.transport_options.get("confirm_publish")
        if connection.transport.driver_type == "amqp" and not is_confirmed:
            raise InvalidOption(
                "broker_transport_options: expected confirm_publish=True, because a message is acknowledged "
                "after it was published again"
            )
