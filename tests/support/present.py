"""What a test does without a service that it needs."""

from typing import TypeVar

import pytest

from tests.servers import Missing, is_required

T = TypeVar("T")


def present(name: str, found: T | Missing) -> T:
    """What was found of this service. Without it the test is skipped, or fails where it is required."""
    if not isinstance(found, Missing):
        return found
    if is_required(name):
        pytest.fail(f"{name} is required: {found.reason}")
    pytest.skip(f"{name}: {found.reason}")
