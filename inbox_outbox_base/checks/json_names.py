"""Members of JSON objects: different keys of a dictionary must not become one name."""

import json
import re
from typing import Any

# A name that a number, None, True or False may have become. The first character decides nearly always, which
# costs less than alternatives from the start.
_OF_OTHER_KEYS = re.compile(r'"[-\dntf](?:(?<=[-\d])[-+.e\d]*|ull|rue|alse)":')


def check_names(text: str) -> str:
    """The JSON text that Python has made, unless an object in it has a name twice.

    Python writes the keys 1 and "1" of a dictionary as the same name, and readers keep one of the members. A
    text without a name that looks like one of a key that is no text is not read again.

    Raises:
        ValueError: different keys have become one name; the error names it.
    """
    if _OF_OTHER_KEYS.search(text):
        json.loads(text, object_pairs_hook=_once)
    return text


def _once(members: list[tuple[str, Any]]) -> None:
    names = set[str]()
    for name, _ in members:
        if name in names:
            raise ValueError(f"different keys become the name {name!r}")
        names.add(name)
