"""RabbitMQ's address."""

import re

from aiormq import exceptions
from yarl import URL

from inbox_outbox_base.errors.inbox import InvalidOption

REFUSALS = (
    exceptions.AuthenticationError,
    exceptions.ConnectionNotAllowed,
    exceptions.InvalidFrameError,
    exceptions.ProbableAuthenticationError,
)
"""Errors that the client raises when RabbitMQ answers but refuses this address."""


def parse(url: str, *, error: type[InvalidOption] = InvalidOption) -> URL:
    """The address, checked.

    Raises:
        InvalidOption: not an address of RabbitMQ, or a character in the password has cut the password short.
            The error does not repeat the text, which may contain a password.
    """
    try:
        address = URL(url)
        is_usable = address.scheme in ("amqp", "amqps") and bool(address.host)
    except (TypeError, ValueError):
        is_usable = False
    if not is_usable:
        raise error("url: expected amqp://user:password@host:port/vhost, or amqps://")
    if "@" in _behind_the_host(url):
        # The text after the first of these characters would be shown as the virtual host.
        raise error("url: write / ? # as %2F %3F %23 in the password, and @ as %40 after the host")
    return address


def _behind_the_host(url: str) -> str:
    # Count in the text: the parsed address has an @ where the text has %40.
    return "".join(re.split("[/?#]", url.partition("://")[2], maxsplit=1)[1:])


def refusal(address: URL, error: Exception) -> str:
    """Why RabbitMQ refuses the connection."""
    # The client does not give the reason of this error.
    is_silent = isinstance(error, exceptions.InvalidFrameError)
    reason = (
        "perhaps the virtual host does not exist, or the user has no permission for it"
        if is_silent
        else error
    )
    return f"url={shown(address)!r}: RabbitMQ refuses the connection: {reason}"


def shown(address: URL) -> str:
    """The address without its password, its query and its fragment."""
    return str(address.with_password(None).with_query(None).with_fragment(None))
