"""A message's properties, with any text as name and value, although RocketMQ does not take every text.

RocketMQ refuses control characters and the names that it uses itself, and its clients refuse blank values.
Properties that it would refuse go into one more property, as JSON; the others stay readable for everybody.
"""

import json
import re
from collections.abc import Mapping

ENCODED = "outbox-encoded"
"""The property that holds the properties RocketMQ would refuse, as a JSON object."""
GROUP = "__SHARDINGKEY"
"""RocketMQ's property for the message group; its client shows it among the user's properties."""
MOST = 128
"""RocketMQ's limit for the number of properties."""

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")
_TAKEN = re.compile(r"[A-Z0-9_]+|__.*|" + ENCODED)
"""A pattern that covers all names RocketMQ uses itself, such as KEYS, 1ST_POP_TIME or __SHARDINGKEY."""


def encode(properties: Mapping[str, str]) -> dict[str, str]:
    """The properties as they are sent: at most 128, without control characters and blank values."""
    plain = {name: value for name, value in properties.items() if _is_plain(name, value)}
    if len(plain) == len(properties) <= MOST:
        return plain
    if len(plain) >= MOST:
        plain = {}
    rest = {name: value for name, value in properties.items() if name not in plain}
    text = json.dumps(rest, ensure_ascii=False, separators=(",", ":"))
    return {**plain, ENCODED: _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)}


def decode(properties: Mapping[str, str]) -> dict[str, str]:
    """The properties as they were before `encode`. If somebody else has encoded them in another way, they
    stay as they are."""
    found = {name: value for name, value in properties.items() if name != GROUP}
    try:
        rest = json.loads(found.get(ENCODED, "{}"))
    except (ValueError, RecursionError):
        return found
    if isinstance(rest, dict) and all(isinstance(value, str) for value in rest.values()):
        found.pop(ENCODED, None)
        found.update(rest)
    return found


def is_carried(text: str) -> bool:
    """Whether RocketMQ takes this text as a value: it is not blank and has no control characters."""
    return bool(text.strip()) and not _CONTROL.search(text)


def size(properties: Mapping[str, str]) -> int:
    """The size of the properties in bytes, as RocketMQ counts it."""
    return sum(len(name.encode()) + len(value.encode()) for name, value in properties.items())


def _is_plain(name: str, value: str) -> bool:
    return is_carried(name) and is_carried(value) and not _TAKEN.fullmatch(name)
