"""Servers whose addresses are in the environment."""

import os
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import URL, make_url

from tests.servers.server import Missing

S = TypeVar("S")


def server(service: str, make: Callable[[URL, str, Callable[[], None]], S]) -> S | Missing:
    """The service at the address in ``INBOX_OUTBOX_TEST_<SERVICE>_URL``, whatever driver it names; `make` is
    given the address, where it comes from, and what stops it: nothing."""
    variable = f"INBOX_OUTBOX_TEST_{service.upper()}_URL"
    value = os.environ.get(variable)
    return make(make_url(value), "environment", lambda: None) if value else Missing(f"{variable} is not set")
