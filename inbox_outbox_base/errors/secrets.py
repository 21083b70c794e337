"""What went wrong and where, for people to read: without passwords, whoever wrote the message."""

import contextlib
import re
from urllib.parse import quote, quote_plus

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

_STRUCK_OUT = "***"
_IN_QUERY = ("password", "passwd", "sslpassword")
_IN_ADDRESS = re.compile(r"(?<=://)([^:/\s]*):\S*@")
"""User and password of any address, to the last "@": a password may hold one although it should not."""
_IN_OPTION = re.compile(rf"\b({'|'.join(_IN_QUERY)})=[^&\s'\"]*", re.IGNORECASE)

_known: set[str] = set()


def remember(address: URL) -> None:
    """Take note of the passwords in an address, the way they are and the way they are written in URLs."""
    plain = [address.password, *(address.query.get(name) for name in _IN_QUERY)]
    for password in plain:
        for text in (password,) if isinstance(password, str) else password or ():
            _known.update(filter(None, (text, quote(text, safe=""), quote_plus(text), repr(text)[1:-1])))


def remember_in(text: str) -> None:
    """The same for an address that has not been read yet; one that nobody can read holds none to know."""
    with contextlib.suppress(ArgumentError, ValueError):
        remember(make_url(text))


def strike_out(message: str) -> str:
    """The message without the passwords of this run, and without that of any address in it.

    A password that is a word is struck out where it stands alone, so that one like "a" leaves the message
    readable.
    """
    message = _IN_ADDRESS.sub(rf"\1:{_STRUCK_OUT}@", message)
    message = _IN_OPTION.sub(rf"\1={_STRUCK_OUT}", message)
    for password in sorted(_known, key=len, reverse=True):
        message = re.sub(rf"(?<!\w){re.escape(password)}(?!\w)", _STRUCK_OUT, message)
    return message


def reason(error: BaseException) -> str:
    """What the driver said in its first line, without the SQL, its parameters, and passwords."""
    cause = getattr(error, "orig", None) or error
    return strike_out((str(cause).strip() or type(cause).__name__).splitlines()[0])


def place(address: URL) -> str:
    """Where a database is, to be read by people."""
    host = address.host or ""
    port = "" if address.port is None else f":{address.port}"
    return f"{address.get_backend_name()}://{host}{port}/{address.database or ''}"
