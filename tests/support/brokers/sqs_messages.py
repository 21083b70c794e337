"""Messages for SQS, of an outbox and of other programs."""

from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from outbox import Envelope


def envelope(topic: str, payload: bytes | None = b"x", key: str | None = None, **headers: str) -> Envelope:
    """A message as a relay passes it to a publisher."""
    return Envelope(f"{uuid4()}", topic, key, payload, "text/plain", headers, 1, datetime.now(UTC))


def text(value: str) -> dict[str, str]:
    """An attribute."""
    return {"DataType": "String", "StringValue": value}


def made_by_others(body: str = "x", group: str = "", **attributes: Any) -> dict[str, Any]:
    """A message that no outbox has sent; with a group, for a FIFO queue."""
    fields = {"MessageGroupId": group, "MessageDeduplicationId": uuid4().hex} if group else {}
    return {"MessageBody": body, "MessageAttributes": attributes, **fields}
