"""The queues of a consumer, looked up: when it begins, which must not fail, and from time to time."""

from typing import Any

from inbox._consuming.leased.consumer import NotThere
from inbox_outbox_base.brokers.sqs.client import (
    FAILURES,
    NO_QUEUE,
    NO_RIGHT,
    code_of,
    is_login_refused,
    text_of,
)
from inbox_outbox_base.brokers.sqs.queue import Queue
from inbox_outbox_base.errors.inbox import InvalidOption

from . import options
from .link import QueueLink


async def connected(link: QueueLink, dead_letter: Any, max_attempts: int | None) -> Any:
    """Open the link, and find where dead letters go: a queue, or the function that was given.

    Raises:
        NotThere: there is no such queue.
        InvalidOption: SQS refuses the login, or the queue's settings do not go with the
            consumer's.
        ConnectionError: SQS does not answer.
    """
    try:
        queue = await link.open()
    except FAILURES as error:
        raise _refusal(error, "queue", link.name) from error
    options.check_deliveries(queue, max_attempts)
    if callable(dead_letter):
        return dead_letter
    return await _target(link, queue, dead_letter)


async def _target(link: QueueLink, queue: Queue, given: str | None) -> Queue:
    name, account = given, None
    if given is None:
        if queue.dead_letters is None:
            raise InvalidOption(
                f"dead_letter=None: queue {queue.name!r} has no RedrivePolicy that names a queue for dead "
                "letters; name one here"
            )
        account, _, name = queue.dead_letters.partition(":")
    try:
        return await link.other(str(name), account)
    except FAILURES as error:
        raise _refusal(error, "dead_letter", str(name)) from error


def _refusal(error: Exception, option: str, name: str) -> Exception:
    code = code_of(error)
    if code in NO_QUEUE:
        return NotThere(f"{option}={name!r}: there is no such queue")
    if is_login_refused(error):
        return InvalidOption(f"url: SQS refuses the login: {text_of(error)}")
    if code in NO_RIGHT:
        return InvalidOption(f"{option}={name!r}: {text_of(error)}")
    return ConnectionError(text_of(error))
