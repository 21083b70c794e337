"""Database addresses as people write them."""

from typing import Any

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from inbox_outbox_base.errors.inbox import InvalidOption
from inbox_outbox_base.supported import FOLDERS

from .connecting import connecting, drivers


def database_url(text: str, option: str = "url", *, error: type[InvalidOption] = InvalidOption) -> URL:
    """The URL, with the inbox's driver where none is named.

    Raises:
        InvalidOption: not a database URL, or an "@" in the password has cut the password short. The error
            does not repeat the text, which may contain a password.
    """
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        raise error(f"{option}: expected something like postgresql://user@host/database") from None
    if url.password is not None and "@" in f"{url.host}{url.database}":
        # The text after the first "@" would become the host, and appear in the driver's errors.
        raise error(f"{option}: write @ as %40 in the password and in the database's name")
    url = url.set(drivername=drivers().get(url.drivername, url.drivername))
    for_engine(url, option, error=error)
    return url


def for_engine(
    url: URL, option: str = "url", *, error: type[InvalidOption] = InvalidOption
) -> tuple[URL, dict[str, Any]]:
    """The URL and the `connect_args` for SQLAlchemy.

    Raises:
        InvalidOption: the URL's query has a wrong value.
    """
    dialect = url.get_backend_name()
    if dialect not in FOLDERS:
        return url, {}
    try:
        return connecting(dialect).for_engine(url)
    except ValueError as why:
        raise error(f"{option}: {why}") from None
