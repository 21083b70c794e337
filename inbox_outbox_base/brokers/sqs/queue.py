"""A queue, as its server describes it."""

import json
import re
from dataclasses import dataclass
from typing import Any

from .address import SQSAddress
from .client import NO_RIGHT, ClientError, ask, code_of

SMALLEST_LIMIT = 262_144
"""The bytes that every server takes in one message, and in one request, unless the queue allows fewer."""
FIFO = ".fifo"
"""The end of the names of FIFO queues."""
_NAME = re.compile(r"[A-Za-z0-9_-]{1,80}|[A-Za-z0-9_-]{1,75}\.fifo")


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue that exists."""

    name: str
    url: str
    largest: int
    """The most bytes in a message."""
    retention: int | None
    """Seconds after which a message is deleted, taken or not; None: the server does not say."""
    dead_letters: str | None
    """The queue to which the server itself moves messages, as "account:name"."""
    deliveries: int
    """After so many deliveries it does that; 0: never."""

    @property
    def is_fifo(self) -> bool:
        """Whether messages belong to groups, and are delivered in the order of each group."""
        return self.name.endswith(FIFO)


def is_name(name: object) -> bool:
    """Whether a queue can have this name."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def find(client: Any, address: SQSAddress, name: str) -> Queue:
    """The queue of that name.

    Raises:
        Exception: one of the client's `FAILURES`.
    """
    owner = {"QueueOwnerAWSAccountId": address.account} if address.account else {}
    url = ask(client.get_queue_url, "QueueUrl", QueueName=name, **owner)["QueueUrl"]
    try:
        answer = ask(client.get_queue_attributes, "Attributes", QueueUrl=url, AttributeNames=["All"])
        attributes = answer["Attributes"]
    except ClientError as error:
        if code_of(error) not in NO_RIGHT:
            raise
        attributes = {}  # whoever may send and receive need not have the right to look
    target, deliveries = _redrive(attributes.get("RedrivePolicy"))
    return Queue(
        name=name,
        url=url,
        largest=_number(attributes.get("MaximumMessageSize")) or SMALLEST_LIMIT,
        retention=_number(attributes.get("MessageRetentionPeriod")),
        dead_letters=target,
        deliveries=deliveries,
    )


def _number(text: Any) -> int | None:
    return int(text) if text is not None and str(text).isdecimal() else None


def _redrive(policy: Any) -> tuple[str | None, int]:
    try:
        found = json.loads(policy or "{}")
        target = str(found["deadLetterTargetArn"]).split(":", 4)[4]
        return target, int(found["maxReceiveCount"])
    except (ValueError, KeyError, IndexError, TypeError):
        return None, 0
