"""A consumer's requests to SQS, in threads: the client is synchronous."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from inbox._consuming.leased.batches import RequestBatches
from inbox._listening.thread_pool import in_thread
from inbox_outbox_base.brokers.sqs.address import SQSAddress
from inbox_outbox_base.brokers.sqs.client import FAILURES, ask, is_login_refused, new_client, plain
from inbox_outbox_base.brokers.sqs.queue import Queue, find

from .options import MOST

_WAIT = 2
"""Seconds that SQS waits for a message before it answers that there is none. A stop takes as long."""
_PATIENCE = 5.0
"""Seconds in which a connection must be made, and in which any other answer must come."""
_CONNECTIONS = 20
GONE = {"InvalidParameterValue", "MessageNotInflight", "ReceiptHandleIsInvalid"}
"""What SQS says about a message that is no longer this consumer's."""


class QueueLink:
    """The client, and the queue of a consumer. A link is for one event loop."""

    def __init__(self, address: SQSAddress, name: str) -> None:
        self._address = address
        self.name = name
        """The name of the queue."""
        self._client: Any = None
        self._deleting = RequestBatches(partial(_codes, in_thread(self._delete)), MOST)
        self._hiding = RequestBatches(partial(_codes, in_thread(self._hide)), MOST)

    async def open(self) -> Queue:
        """Make the client, and find the queue.

        Raises:
            Exception: one of the client's `FAILURES`.
        """
        if self._client is None:
            self._client = await in_thread(self._new_client)()
        self.queue: Queue = await in_thread(find)(self._client, self._address, self.name)
        return self.queue

    async def other(self, name: str, account: str | None = None) -> Queue:
        """Another queue. Raises as `open`."""
        address = self._address if account is None else replace(self._address, account=account)
        return await in_thread(find)(self._client, address, name)

    async def receive(self, most: int, hidden: int) -> list[dict[str, Any]]:
        """Messages, hidden from others for so many seconds; none if there are none for a while.

        Raises:
            Exception: one of the client's `FAILURES`.
        """
        asking = partial(
            ask,
            self._client.receive_message,
            QueueUrl=self.queue.url,
            MaxNumberOfMessages=min(MOST, most),
            WaitTimeSeconds=_WAIT,
            VisibilityTimeout=hidden,
            MessageAttributeNames=["All"],
            AttributeNames=["All"],
        )
        try:
            answer = await in_thread(asking)()
        except FAILURES as error:
            if is_login_refused(error) and not self._address.access_key:
                # A new client looks for a login again, which may have been renewed.
                self._client = await in_thread(self._new_client)()
            raise
        found: list[dict[str, Any]] = answer.get("Messages") or []
        return found

    async def delete(self, handle: str) -> str:
        """Acknowledge a message; SQS's code if it refuses that, else an empty text. Raises as `receive`."""
        return await self._deleting.add({"ReceiptHandle": handle})

    async def hide(self, handle: str, seconds: int) -> str:
        """Hide a message for so many seconds from now. Returns and raises as `delete`."""
        return await self._hiding.add({"ReceiptHandle": handle, "VisibilityTimeout": seconds})

    async def send(self, queue: Queue, entry: dict[str, Any]) -> None:
        """Send a message to a queue. Raises as `receive`."""
        await in_thread(partial(ask, self._client.send_message, "MessageId", QueueUrl=queue.url, **entry))()

    async def close(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None:
            await in_thread(client.close)()

    def _new_client(self) -> Any:
        return new_client(self._address, connect=_PATIENCE, read=_WAIT + _PATIENCE, connections=_CONNECTIONS)

    def _delete(self, entries: list[dict[str, Any]]) -> Any:
        return ask(self._client.delete_message_batch, QueueUrl=self.queue.url, Entries=entries)

    def _hide(self, entries: list[dict[str, Any]]) -> Any:
        return ask(self._client.change_message_visibility_batch, QueueUrl=self.queue.url, Entries=entries)


async def _codes(
    call: Callable[[list[dict[str, Any]]], Awaitable[Any]], entries: Sequence[dict[str, Any]]
) -> list[str]:
    """For each message, SQS's code if it refuses the request, else an empty text."""
    said = await call([{"Id": str(place), **entry} for place, entry in enumerate(entries)])
    codes = {each.get("Id"): "" for each in said.get("Successful") or ()}
    for each in said.get("Failed") or ():
        codes[each.get("Id")] = plain(each.get("Code", "")) or "Failed"
    return [codes.get(str(place), "SQS's answer does not name it") for place in range(len(entries))]
