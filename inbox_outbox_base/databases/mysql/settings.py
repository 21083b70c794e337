"""MySQL and MariaDB: settings of a driver's connection under which our values would be damaged."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from inbox_outbox_base.checks.samples import is_kept

_READ = {
    1: ("1", 1),  # TINYINT, and so on
    2: ("1", 1),
    3: ("1", 1),
    5: ("1.5", 1.5),
    8: ("1", 1),
    12: ("2000-01-02 03:04:05.000006", datetime(2000, 1, 2, 3, 4, 5, 6)),  # noqa: DTZ001 - as stored
    252: (b"a", b"a"),
    253: ("a", "a"),
    254: ("a", "a"),
}
"""By the protocol's number of a type: what the server sends, and what the driver makes of it."""

_TEXTS = (252, 253, 254)
"""Those of texts and bytes."""

_WRITTEN = {"a": "'a'", 1: "1", 1.5: "1.5e0", None: "NULL"}


def unusable(driver: Any) -> str | None:
    """See `Taking.unusable_setting`."""
    if hasattr(driver, "string_literal"):
        return _unusable_of_mysqlclient(driver)
    charset = driver.character_set_name()
    if charset != "utf8mb4" and "X'" not in driver.escape(b"a"):
        # In other literals, the server would take the bytes of our text for characters of this set.
        return f"charset={charset!r}: expected 'utf8mb4', or PyMySQL 1.2"
    if not hasattr(driver, "decoders"):  # asyncmy does not show them
        return None
    if not driver.use_unicode:
        return "use_unicode=False: expected True"
    for kind, (sent, expected) in _READ.items():
        if not is_kept(driver.decoders.get(kind) or _as_it_is, sent, expected):
            return f"conv: it must read type {kind} as PyMySQL does: {sent!r} as {expected!r}"
    for value, literal in _WRITTEN.items():
        if not is_kept(driver.escape, value, literal):
            return f"conv: it must write {value!r} as PyMySQL does: {literal}"
    return None


_LITERALS = {"a": b"'a'", b"a": b"_binary'a'", 1: b"1", 1.5: b"1.5e0", None: b"NULL"}
"""By value, what mysqlclient writes."""


def _unusable_of_mysqlclient(driver: Any) -> str | None:
    charset = driver.character_set_name()
    if charset != "utf8mb4":
        return f"charset={charset!r}: expected 'utf8mb4'"
    if not driver.literal(b"a").startswith(b"_binary"):
        # The server would take our bytes for characters.
        return "binary_prefix=False: expected True"
    for kind, (sent, expected) in _READ.items():
        convert = driver.converter.get(kind)
        if kind in _TEXTS:
            if not isinstance(convert, Sequence) or (None, str) not in convert:
                return f"use_unicode=False, or conv of type {kind}: expected bytes as bytes, and text as text"
        elif not is_kept(convert or _as_it_is, sent, expected):
            return f"conv: it must read type {kind} as mysqlclient does: {sent!r} as {expected!r}"
    for value, literal in _LITERALS.items():
        if not is_kept(driver.literal, value, literal):
            return f"conv: it must write {value!r} as mysqlclient does: {literal!r}"
    return None


def _as_it_is(value: Any) -> Any:
    return value
