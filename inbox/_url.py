"""Addresses of databases, as people write them."""

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from .errors import InvalidOption

_DRIVERS = {
    "postgresql": "postgresql+psycopg",
    "postgres": "postgresql+psycopg",
    "mysql": "mysql+pymysql",
    "mariadb": "mariadb+pymysql",
}


def database_url(text: str) -> URL:
    """The URL, with the driver that the inbox speaks through where none is named.

    Raises:
        InvalidOption: not a URL of a database, or one whose password was cut short by an "@" in it. The
            text is not repeated: it may hold a password.
    """
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        raise InvalidOption("url: expected something like postgresql://user@host/database") from None
    if url.password is not None and "@" in f"{url.host}{url.database}":
        # What follows the first "@" would be taken for the host, and stand in the driver's errors.
        raise InvalidOption("url: write @ as %40 in the password and in the database's name")
    return url.set(drivername=_DRIVERS.get(url.drivername, url.drivername))
