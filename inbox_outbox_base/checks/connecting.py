"""The contract between URLs and a database: its driver, and what its URLs may contain."""

from functools import cache
from typing import Any

from sqlalchemy import URL

from inbox_outbox_base.supported import FOLDERS, part


class Connecting:
    """One subclass for each database."""

    driver: str
    """SQLAlchemy's name of our driver."""
    is_default = False
    """Whether SQLAlchemy uses it where a URL names none."""
    aliases: tuple[str, ...] = ()
    """Other names of the database in URLs."""
    extra: str | None = None
    """The extra that installs the driver; None if Python brings it."""
    port: int | None = None
    """The server's usual port; None if the database is a file."""
    idle_properties: frozenset[str] = frozenset()
    """Properties, in lower case, that tune the database's JDBC driver and have no effect here."""

    def for_engine(self, url: URL) -> tuple[URL, dict[str, Any]]:
        """The URL and the `connect_args` for SQLAlchemy.

        Raises:
            ValueError: the URL's query has a wrong value.
        """
        return url, {}

    def reachable(self, url: URL) -> URL:
        """The URL by which other processes on this machine find the database, too.

        Raises:
            ValueError: there is none.
        """
        return url

    def with_property(self, url: URL, name: str, value: str) -> URL | None:
        """The URL with a property of the database's JDBC driver, its name in lower case; None if the property
        is not known."""
        return None


@cache
def connecting(dialect: str) -> Connecting:
    """How to connect to a supported database."""
    return part("connecting", dialect)()  # type: ignore[no-any-return]


@cache
def drivers() -> dict[str, str]:
    """What a URL has to name as its driver, by the name of the database alone."""
    return {
        name: f"{dialect}+{connecting(dialect).driver}"
        for dialect in FOLDERS
        for name in (dialect, *connecting(dialect).aliases)
        if not connecting(dialect).is_default
    }


def extra_of(url: URL) -> str | None:
    """The extra that installs the URL's driver, if that is ours."""
    is_ours = url.drivername in drivers().values()
    return connecting(url.get_backend_name()).extra if is_ours else None
