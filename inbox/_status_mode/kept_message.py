"""What the record of a dead or halted message keeps of it, with `keep_payload`."""

import json
import logging
from typing import Any, NamedTuple

from inbox_outbox_base.checks.results import compact_json
from inbox_outbox_base.errors.inbox import InvalidOption
from inbox_outbox_base.words.incoming import Delivery
from inbox_outbox_base.words.outgoing import Envelope

LARGEST = 1_000_000
"""The most bytes that a record keeps of a message: databases refuse a statement that is too long."""

_log = logging.getLogger("inbox.claims")


class KeptMessage(NamedTuple):
    """A payload, and with what it came: JSON, or None if it was given alone. Without both, nothing is
    kept."""

    payload: bytes | None = None
    delivery: str | None = None


def kept(message: object, payload: Any) -> KeptMessage:
    """The whole message, if a consumer or a relay of ours has brought it, so that it can be delivered again;
    else the payload that the claim was given. A whole message that is too large is not kept, but runs.

    Raises:
        InvalidOption: the claim's payload is too large to be kept, or not JSON.
    """
    if not isinstance(message, Delivery | Envelope):
        return KeptMessage(_small(_as_bytes(payload)))
    found = KeptMessage(_as_bytes(message.payload), _as_json(message))
    size = sum(len(part) for part in found if part is not None)
    if size <= LARGEST:
        return found
    _log.warning(
        "message %s: of its %s bytes, nothing is kept if it dies: expected at most %s (keep_payload=True)",
        message.id,
        f"{size:,}",
        f"{LARGEST:,}",
    )
    return KeptMessage()


def _as_json(message: Delivery | Envelope) -> str:
    created_at = message.created_at
    parts = {
        "id": message.id,
        "topic": message.topic,
        "key": message.key,
        "content_type": message.content_type,
        "headers": dict(message.headers),
        "created_at": None if created_at is None else created_at.isoformat(),
    }
    # In ASCII, which every database stores. Our own consumers give nothing but text.
    return json.dumps(parts, separators=(",", ":"), default=str)


def _small(payload: bytes | None) -> bytes | None:
    if payload is not None and len(payload) > LARGEST:
        raise InvalidOption(
            f"payload of {len(payload):,} bytes: expected at most {LARGEST:,} (keep_payload=True)"
        )
    return payload


def _as_bytes(payload: Any) -> bytes | None:
    if payload is None:
        return None
    if isinstance(payload, bytes | bytearray | memoryview):
        return bytes(payload)
    if isinstance(payload, str):
        return payload.encode(errors="surrogatepass")
    try:
        return compact_json(payload).encode()
    except (ValueError, RecursionError) as error:
        raise InvalidOption(f"payload: expected bytes, str or a JSON value: {error}") from None
