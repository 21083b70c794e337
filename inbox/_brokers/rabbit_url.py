"""Where RabbitMQ is."""

from aiormq import exceptions
from yarl import URL

from ..errors import InvalidOption

REFUSALS = (
    exceptions.AuthenticationError,
    exceptions.ConnectionNotAllowed,
    exceptions.InvalidFrameError,
    exceptions.ProbableAuthenticationError,
)
"""What the client raises when RabbitMQ is there, but lets nobody in with this address."""


def parse(url: str) -> URL:
    """The address, checked.

    Raises:
        InvalidOption: no address of RabbitMQ; it does not repeat the text, in which a password may be.
    """
    try:
        address = URL(url)
        is_usable = address.scheme in ("amqp", "amqps") and bool(address.host)
    except (TypeError, ValueError):
        is_usable = False
    if not is_usable:
        raise InvalidOption("url: expected amqp://user:password@host:port/vhost, or amqps://")
    return address


def refusal(address: URL, error: Exception) -> str:
    """Why nobody is let in."""
    # Of this one the client does not tell the reason.
    is_silent = isinstance(error, exceptions.InvalidFrameError)
    reason = "perhaps there is no such virtual host, or no right to it" if is_silent else error
    return f"url={shown(address)!r}: RabbitMQ refuses the connection: {reason}"


def shown(address: URL) -> str:
    """The address without its password and its query."""
    return str(address.with_password(None).with_query(None))
