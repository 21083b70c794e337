"""Types of results, for type checkers: a result is stored as JSON, and reads back as JSON has it."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

JsonResult = str | int | float | bool | Sequence[Any] | Mapping[Any, Any] | None
"""What may be stored: a tuple reads back as a list, and so on."""

J = TypeVar(
    "J",
    None,
    bool,
    int,
    float,
    str,
    list[Any],
    dict[str, Any],
    bool | None,
    int | None,
    float | None,
    str | None,
    list[Any] | None,
    dict[str, Any] | None,
)
"""What reads back with the type that it had. A subclass, such as an Enum of texts, reads back as its base;
elements are Any, because a list of tuples reads back as a list of lists."""
