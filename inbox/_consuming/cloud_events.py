"""Events of other producers, which CloudEvents identifies by their source and id."""

import json
from collections.abc import Mapping
from hashlib import blake2b

from inbox_outbox_base.checks.keys import LONGEST_KEY

_STRUCTURED = "application/cloudevents+json"
_compact = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def event_id(headers: Mapping[str, str], content_type: str, payload: bytes | None) -> str | None:
    """Source and id as one text, in binary or structured mode; None if it is no event, or one is missing."""
    if "ce_specversion" in headers:
        return _joined(headers.get("ce_source"), headers.get("ce_id"))
    if content_type.partition(";")[0].strip().lower() != _STRUCTURED:
        return None
    try:
        event = json.loads(payload or b"")
    except (ValueError, RecursionError):
        return None
    return _joined(event.get("source"), event.get("id")) if isinstance(event, dict) else None


def _joined(source: object, event: object) -> str | None:
    """Encoded like an inbox's key of two parts, so that different pairs give different texts; a long text
    becomes a digest."""
    if not (isinstance(source, str) and isinstance(event, str) and source and event):
        return None
    text = _compact([source, event])
    try:
        encoded = text.encode()
    except UnicodeEncodeError:  # bytes of a header that are not UTF-8
        text = json.dumps([source, event])
        encoded = text.encode()
    if len(encoded) <= LONGEST_KEY:
        return text
    return f"cloudevents-{blake2b(encoded, digest_size=32).hexdigest()}"
