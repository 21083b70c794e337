"""Queues that belong to one test, and their contents."""

import json
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Self
from uuid import uuid4

from inbox import Delivery
from inbox._consuming.sqs.delivery import ATTRIBUTE, REASON, attributes_of, delivery_of, object_in
from inbox_outbox_base.brokers.sqs import address
from inbox_outbox_base.brokers.sqs.client import ClientError, new_client

WAIT = 60
"""Seconds, for what takes one on a machine that is not busy."""


class SQSQueues:
    """Makes queues, and removes them on leaving the ``with`` block. `client` is boto3's."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.client = new_client(address.parse(url), connect=10, read=30, connections=10)
        self._made: list[str] = []
        self._dead: dict[str, list[dict[str, Any]]] = {}

    def new(self, name: str = "", *, fifo: bool = False, **attributes: Any) -> str:
        """Create a queue; its name."""
        name = name or f"test-{uuid4().hex}" + (".fifo" if fifo else "")
        given = {each: str(value) for each, value in attributes.items()}
        kind = {"FifoQueue": "true"} if name.endswith(".fifo") else {}
        self.client.create_queue(QueueName=name, Attributes={**given, **kind})
        self._made.append(name)
        return name

    def redriving(self, target: str, deliveries: int) -> str:
        """A queue whose messages the server moves to `target` after so many deliveries."""
        arn = f"arn:aws:sqs:us-east-1:000000000000:{target}"
        policy = {"deadLetterTargetArn": arn, "maxReceiveCount": deliveries}
        return self.new(fifo=target.endswith(".fifo"), RedrivePolicy=json.dumps(policy))

    def at(self, name: str) -> str:
        """The URL of a queue."""
        return str(self.client.get_queue_url(QueueName=name)["QueueUrl"])

    def delete(self, name: str) -> None:
        """Delete a queue."""
        self.client.delete_queue(QueueUrl=self.at(name))

    def waiting(self, name: str) -> tuple[int, int]:
        """How many messages nobody has, and how many somebody has."""
        found = self.client.get_queue_attributes(QueueUrl=self.at(name), AttributeNames=["All"])["Attributes"]
        visible, hidden = "ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"
        return int(found[visible]), int(found[hidden])

    def put(self, name: str, entries: Sequence[dict[str, Any]]) -> None:
        """Send messages as they are."""
        for entry in entries:
            self.client.send_message(QueueUrl=self.at(name), **entry)

    def taken(self, name: str, count: int) -> list[dict[str, Any]]:
        """At least `count` messages as the client returns them, and all that are there; deleted."""
        url, found = self.at(name), list[dict[str, Any]]()
        give_up = time.monotonic() + WAIT
        while time.monotonic() < give_up:
            answer = self.client.receive_message(
                QueueUrl=url,
                MaxNumberOfMessages=10,
                MessageAttributeNames=["All"],
                AttributeNames=["All"],
                WaitTimeSeconds=0 if len(found) >= count else 1,
            )
            some = answer.get("Messages", [])
            handles = [
                {"Id": str(place), "ReceiptHandle": each["ReceiptHandle"]} for place, each in enumerate(some)
            ]
            if handles:
                self.client.delete_message_batch(QueueUrl=url, Entries=handles)
            found += some
            if not some and len(found) >= count:
                break
        return found

    def received(self, name: str, count: int) -> list[Delivery]:
        """The same as a handler gets them."""
        return [delivery_of(message, name, 1) for message in self.taken(name, count)]

    def dead_letters(self, name: str) -> list[tuple[Delivery, str]]:
        """The dead letters that have come to a queue so far, with their reasons."""
        known = self._dead.setdefault(name, [])
        known += self.taken(name, 0)
        return [
            (delivery_of(each, name, 1), str(object_in(attributes_of(each), ATTRIBUTE).get(REASON)))
            for each in known
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for name in self._made:
            with suppress(ClientError):
                self.delete(name)
        self.client.close()
