"""Servers whose addresses are in the environment."""

import os

from sqlalchemy import URL, make_url

from tests.servers.server import Missing


def address(service: str) -> URL | Missing:
    """The address in ``INBOX_OUTBOX_TEST_<SERVICE>_URL``, whatever driver it names."""
    variable = f"INBOX_OUTBOX_TEST_{service.upper()}_URL"
    value = os.environ.get(variable)
    return make_url(value) if value else Missing(f"{variable} is not set")
