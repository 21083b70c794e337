"""Move dead letters back to their queue."""

import logging
from collections.abc import Mapping
from secrets import token_hex
from typing import Any

from inbox._consuming.redriving import LetterChoice, check_no_loop, check_places
from inbox_outbox_base.brokers.sqs import address
from inbox_outbox_base.brokers.sqs.client import (
    FAILURES,
    NO_QUEUE,
    ask,
    code_of,
    is_login_refused,
    new_client,
    text_of,
)
from inbox_outbox_base.brokers.sqs.queue import Queue, find
from inbox_outbox_base.errors.inbox import InvalidOption
from inbox_outbox_base.words.redriven import Only, Redriven

from . import options
from .dead_letters import has_its_id, is_looked_at, looked_at, moved_back, source_of
from .delivery import delivery_of

_HIDDEN = 300
"""Seconds for which nobody else gets a letter that was received."""
_WAIT = 1
"""Seconds until an answer that there are no more; SQS then asks all of its servers."""
_PATIENCE = 10.0
_log = logging.getLogger("inbox.sqs")


def redrive(
    url: str,
    dead_letters: str,
    *,
    to: str | None = None,
    only: Only | None = None,
    limit: int | None = None,
    dry_run: bool = False,
) -> Redriven:
    """Move dead letters back to the queue from which they came, to be handled again.

    A letter leaves the dead letters after SQS has confirmed it in its queue, so none is lost; if the call is
    killed in between, the message is in both, and its inbox takes it once. It keeps its id, its key and its
    time, and has all its attempts again; only a message of another producer that fills its queue's limit
    gets another id, with a warning. It arrives behind the messages that wait.

    Each letter is looked at once. One that was moved and dies again meanwhile stays. While the call runs, and
    for five minutes if it is killed, nobody else gets the letters that stay; in a FIFO queue they are written
    anew at the end instead, also by a dry run, since SQS would hide the later letters of their groups.

    Args:
        url: sqs://access-key:secret@sqs.eu-west-1.amazonaws.com, or sqs+http:// without TLS.
        dead_letters: the queue with the dead letters, such as "orders-dead".
        to: the queue to which they go; by default each goes to the one that it names.
        only: a function of a `Delivery`: whether this message goes back; None: all.
        limit: move at most this many; None: all.
        dry_run: move nothing, and count what would be moved.

    Returns:
        How many were moved, how many of those that were looked at were left, and how many are too large for
        the queue to which they would go.

    Raises:
        InvalidOption: an argument cannot be used: for example, there is no such queue, or a letter names no
            queue, and `to` is None.
        ConnectionError: SQS does not answer, or takes no message; what was moved before stays moved.
        RuntimeError: called in an event loop; use `asyncio.to_thread`.
    """
    check_places("queue", dead_letters, to)
    if to == dead_letters:
        raise InvalidOption(f"to={to!r}: expected another queue than that of the dead letters")
    options.name("dead_letters", dead_letters)
    target = None if to is None else options.name("to", to)
    place, choice = address.parse(url), LetterChoice(only, limit)
    check_no_loop()
    client = new_client(place, connect=_PATIENCE, read=_PATIENCE, connections=1)
    try:
        _SQSMover(client, place, target, choice, dry_run).run(dead_letters)
    except FAILURES as error:
        if is_login_refused(error):
            raise InvalidOption(f"url: SQS refuses the login: {text_of(error)}") from None
        raise ConnectionError(
            f"{place}: {text_of(error)}; {choice.moved} messages were moved before"
        ) from error
    finally:
        client.close()
    return choice.result()


class _SQSMover:
    """One call."""

    def __init__(
        self, client: Any, place: address.SQSAddress, target: str | None, choice: LetterChoice, dry_run: bool
    ) -> None:
        self._client = client
        self._place = place
        self._target = target
        self._choice = choice
        self._dry_run = dry_run
        self._mark = token_hex(8)
        self._queues: dict[str, Queue] = {}
        self._moved: set[str] = set()
        """The ids of the messages that were moved."""
        self._kept: dict[str, str] = {}
        """What stays as it is until the end: SQS's ids and handles."""

    def run(self, dead_letters: str) -> None:
        """Look at all letters."""
        self._letters = self._queue("dead_letters", dead_letters)
        if self._target is not None:
            self._queue("to", self._target)
        pending: list[dict[str, Any]] = []
        try:
            while not self._choice.is_full:
                pending = self._received()
                if not pending:
                    return
                while pending:
                    self._look(pending[0])
                    pending.pop(0)
        finally:
            for each in pending:
                self._kept[each["MessageId"]] = each["ReceiptHandle"]
            self._give_back()

    def _look(self, letter: dict[str, Any]) -> None:
        if letter["MessageId"] in self._kept or is_looked_at(letter, self._mark):
            self._kept[letter["MessageId"]] = letter["ReceiptHandle"]
            return
        delivery = delivery_of(letter, self._letters.name, 1)
        if delivery.id in self._moved or not self._choice.wants(delivery):
            self._choice.left += 1
            self._leave(letter)
            return
        name = self._target or source_of(letter)
        if name is None or name == self._letters.name:
            raise InvalidOption(f"to=None: {delivery.place} names no queue to which it could go back")
        entry = moved_back(self._queue("to", name), delivery)
        if entry is None:
            self._choice.failed += 1
            _log.warning("%s, id %s: too large for queue %r", delivery.place, delivery.id, name)
            self._leave(letter)
            return
        if not has_its_id(entry):
            _log.warning("%s, id %s: no room for its id, so it gets another", delivery.place, delivery.id)
        if not self._dry_run:
            ask(self._client.send_message, "MessageId", QueueUrl=self._queues[name].url, **entry)
        self._choice.moved += 1
        self._moved.add(delivery.id)
        if self._dry_run:
            self._leave(letter)
        else:
            self._delete(letter)

    def _leave(self, letter: dict[str, Any]) -> None:
        delivery = delivery_of(letter, self._letters.name, 1)
        entry = looked_at(self._letters, delivery, self._mark) if self._letters.is_fifo else None
        if entry is None:
            self._kept[letter["MessageId"]] = letter["ReceiptHandle"]
            return
        ask(self._client.send_message, "MessageId", QueueUrl=self._letters.url, **entry)
        self._delete(letter)

    def _received(self) -> list[dict[str, Any]]:
        answer = ask(
            self._client.receive_message,
            QueueUrl=self._letters.url,
            MaxNumberOfMessages=self._choice.room(options.MOST),
            WaitTimeSeconds=_WAIT,
            VisibilityTimeout=_HIDDEN,
            MessageAttributeNames=["All"],
            AttributeNames=["All"],
        )
        found: list[dict[str, Any]] = answer.get("Messages") or []
        return found

    def _delete(self, letter: Mapping[str, Any]) -> None:
        handle = letter["ReceiptHandle"]
        ask(self._client.delete_message, QueueUrl=self._letters.url, ReceiptHandle=handle)

    def _give_back(self) -> None:
        handles = list(self._kept.values())
        for start in range(0, len(handles), options.MOST):
            entries = [
                {"Id": str(place), "ReceiptHandle": handle, "VisibilityTimeout": 0}
                for place, handle in enumerate(handles[start : start + options.MOST])
            ]
            ask(self._client.change_message_visibility_batch, QueueUrl=self._letters.url, Entries=entries)

    def _queue(self, option: str, name: str) -> Queue:
        if name not in self._queues:
            try:
                self._queues[name] = find(self._client, self._place, name)
            except FAILURES as error:
                if code_of(error) in NO_QUEUE:
                    raise InvalidOption(f"{option}={name!r}: there is no such queue") from None
                raise
        return self._queues[name]
