"""A payload's digest is computed from its value, in one fixed form."""

import enum
import json
import math
from hashlib import blake2b
from typing import Any

import pytest

from inbox.errors import InvalidOption
from inbox_outbox_base.checks.keys import digest
from tests.support.cases import case


class Colour(enum.StrEnum):
    """An enum whose members are strings."""

    RED = "red"


SAME: list[tuple[Any, Any]] = [
    ({"amount": 10.0, "order": 1}, {"order": 1, "amount": 10}),
    ([1e22, -0.0, 1.5e300], [10**22, 0, int(1.5e300)]),
    ({"a": [{"b": (2.0, "2.0")}]}, {"a": [{"b": [2, "2.0"]}]}),
    (("order-1", 5), ["order-1", 5.0]),
    (7.0, 7),
    (Colour.RED, "red"),
    ([Colour.RED], ["red"]),
    ("text", b"text"),
    (bytearray(b"text"), memoryview(b"text")),
]
OTHER: list[tuple[Any, Any]] = [
    ({"amount": 10}, {"amount": "10"}),
    ({"amount": 10}, {"amount": 10.5}),
    ({"amount": 1.0e-7}, {"amount": 0}),
    (["10.0"], ["10"]),
    ([True], [1]),
    ({"a": None}, {}),
    ([2**53], [2**53 + 1]),
    ([1, 2], [2, 1]),
]
KEPT: list[Any] = [
    {"b": [2, None, True], "a": "ü\ud800", "c": {"x": 0.1, "y": -3, "z": 1.05}},
    ["e+ and .0", 2**70, 10.05, 1e-7],
    "text",
    7,
]


def test_the_same_payload() -> None:
    """The order of members, tuple or list, and 10 or 10.0 do not change the digest."""
    for one, other in SAME:
        assert digest(one) == digest(other)


def test_another_payload() -> None:
    """Payloads that differ in JSON have different digests."""
    for one, other in OTHER:
        with case((one, other)):
            assert digest(one) != digest(other)


def test_stored_digests_go_on_to_match() -> None:
    """A digest is computed in the form in which it is stored: of the text, or of compact and sorted JSON."""
    for payload in KEPT:
        is_text = isinstance(payload, str)
        text = payload if is_text else json.dumps(payload, sort_keys=True, separators=(",", ":"))
        assert digest(payload) == blake2b(text.encode(), digest_size=16).digest()


def test_an_invalid_payload_is_refused() -> None:
    """A value that JSON cannot represent raises `InvalidOption`."""
    for payload in (math.inf, [-math.inf], {"a": math.nan}, {1, 2}, object(), {"a": 1, 2: 3}, 10**5_000):
        with pytest.raises(InvalidOption, match=r"^payload: expected bytes, str or a JSON value"):
            digest(payload)


def test_a_payload_that_is_nested_too_deeply() -> None:
    """A payload that is nested too deeply is rejected like other invalid payloads."""
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(InvalidOption, match="payload"):
        digest(deep)
