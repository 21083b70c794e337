"""Database addresses as people write them."""

from typing import Any

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from inbox_outbox_base.errors.inbox import InvalidOption

_THRESHOLD = "prepare_threshold"
_DRIVERS = {
    "postgresql": "postgresql+psycopg",
    "postgres": "postgresql+psycopg",
    "mysql": "mysql+pymysql",
    "mariadb": "mariadb+pymysql",
}


def database_url(text: str, option: str = "url", *, error: type[InvalidOption] = InvalidOption) -> URL:
    """The URL, with the inbox's driver where none is named.

    Raises:
        InvalidOption: not a database URL, or one whose password was cut short by an "@" in it. The error does
            not repeat the text, which may contain a password.
    """
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        raise error(f"{option}: expected something like postgresql://user@host/database") from None
    if url.password is not None and "@" in f"{url.host}{url.database}":
        # Text after the first "@" would become the host, and appear in the driver's errors.
        raise error(f"{option}: write @ as %40 in the password and in the database's name")
    url = url.set(drivername=_DRIVERS.get(url.drivername, url.drivername))
    for_engine(url, option, error=error)
    return url


def for_engine(
    url: URL, option: str = "url", *, error: type[InvalidOption] = InvalidOption
) -> tuple[URL, dict[str, Any]]:
    """The URL and the `connect_args` for SQLAlchemy: ``?prepare_threshold=none`` turns psycopg's prepared
    statements off, for poolers in transaction mode; psycopg itself does not read it from a URL.

    Raises:
        InvalidOption: `prepare_threshold` is neither a whole number nor "none".
    """
    value = url.query.get(_THRESHOLD)
    if value is None or url.drivername != "postgresql+psycopg":
        return url, {}
    if value != "none" and not (isinstance(value, str) and value.isdecimal()):
        raise error(f"{option}: prepare_threshold: expected a whole number or none")
    threshold = None if value == "none" else int(value)
    return url.difference_update_query([_THRESHOLD]), {_THRESHOLD: threshold}
