"""Error texts for people: what went wrong and where, without passwords, no matter who wrote the message."""

import contextlib
import re
from urllib.parse import quote, quote_plus

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

_STRUCK_OUT = "***"
_IN_QUERY = ("password", "passwd", "sslpassword")
_IN_ADDRESS = re.compile(r"(?<=://)([^:/\s]*):\S*@")
"""User and password of any address, up to the last "@": a password may contain one, although it should
not."""
_IN_OPTION = re.compile(rf"\b({'|'.join(_IN_QUERY)})=[^&\s'\"]*", re.IGNORECASE)

_known: set[str] = set()


def remember(address: URL) -> None:
    """Remember the passwords in an address, as they are and as they are written in URLs."""
    plain = [address.password, *(address.query.get(name) for name in _IN_QUERY)]
    for password in plain:
        for text in (password,) if isinstance(password, str) else password or ():
            _known.update(filter(None, (text, quote(text, safe=""), quote_plus(text), repr(text)[1:-1])))


def remember_in(text: str) -> None:
    """The same for an address that has not been parsed yet; one that cannot be parsed has no password to
    remember."""
    with contextlib.suppress(ArgumentError, ValueError):
        remember(make_url(text))


def strike_out(message: str) -> str:
    """The message without the passwords remembered in this run, and without passwords in addresses.

    A password is removed only if it stands alone: even if it is as short as "a", the message stays readable.
    """
    message = _IN_ADDRESS.sub(rf"\1:{_STRUCK_OUT}@", message)
    message = _IN_OPTION.sub(rf"\1={_STRUCK_OUT}", message)
    # The longest first, because one password may be a part of another.
    for password in sorted(_known, key=len, reverse=True):
        message = re.sub(rf"(?<!\w){re.escape(password)}(?!\w)", _STRUCK_OUT, message)
    return message


def reason(error: BaseException) -> str:
    """The first line of the driver's message, without the SQL, its parameters, and passwords."""
    cause = getattr(error, "orig", None) or error
    return strike_out((str(cause).strip() or type(cause).__name__).splitlines()[0])


def place(address: URL) -> str:
    """A database's location, to be read by people."""
    host = address.host or ""
    port = "" if address.port is None else f":{address.port}"
    return f"{address.get_backend_name()}://{host}{port}/{address.database or ''}"
