"""A message's properties: any text as name and value, though RocketMQ does not take all of it.

It refuses control characters and the names that it uses itself, and its clients refuse blank values. So what
it could not carry as it is goes into one property more, as JSON; the others stay readable for everybody.
"""

import json
import re
from collections.abc import Mapping

ENCODED = "outbox-encoded"
"""The property with those that cannot be carried as they are, as a JSON object."""
GROUP = "__SHARDINGKEY"
"""RocketMQ's property for the message group; its client shows it as if it were one of the user's."""
MOST = 128
"""RocketMQ's limit for the number of properties."""

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")
_TAKEN = re.compile(r"[A-Z0-9_]+|__.*|" + ENCODED)
"""The pattern of names that RocketMQ uses itself, as KEYS, 1ST_POP_TIME or __SHARDINGKEY, and then some."""


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
    """The properties as they were before `encode`. Those that somebody else has encoded in another way stay
    as they are."""
    found = {name: value for name, value in properties.items() if name != GROUP}
    try:
        rest = json.loads(found.get(ENCODED, "{}"))
    except ValueError:
        return found
    if isinstance(rest, dict) and all(isinstance(value, str) for value in rest.values()):
        found.pop(ENCODED, None)
        found.update(rest)
    return found


def is_carried(text: str) -> bool:
    """Whether RocketMQ takes this text as a value: it is not blank and has no control characters."""
    return bool(text.strip()) and not _CONTROL.search(text)


def size(properties: Mapping[str, str]) -> int:
    """Their size in bytes, as RocketMQ counts it."""
    return sum(len(name.encode()) + len(value.encode()) for name, value in properties.items())


def _is_plain(name: str, value: str) -> bool:
    return is_carried(name) and is_carried(value) and not _TAKEN.fullmatch(name)
