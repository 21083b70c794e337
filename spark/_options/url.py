"""Database URLs: ``jdbc:...`` or SQLAlchemy's form."""

from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from sqlalchemy import URL

from inbox_outbox_base.checks.url import database_url
from inbox_outbox_base.databases.registry import taking
from inbox_outbox_base.errors.inbox import InvalidOption

_SCHEMES = {
    "postgresql": "postgresql+psycopg",
    "mysql": "mysql+pymysql",
    "mariadb": "mariadb+pymysql",
}
_DRIVERS = ("psycopg", "pymysql", "pysqlite")
_PORTS = {"postgresql": 5432, "mysql": 3306, "mariadb": 3306}

_RENAMED = {"sslmode": "sslmode", "sslrootcert": "sslrootcert", "sslcert": "sslcert", "sslkey": "sslkey"}
"""Properties of PostgreSQL's JDBC driver that have the same name in psycopg."""

_WITHOUT_EFFECT = {
    "rewritebatchedinserts",
    "rewritebatchedstatements",
    "preparethreshold",
    "stringtype",
    "defaultrowfetchsize",
    "useunicode",
    "characterencoding",
    "tcpkeepalive",
    "applicationname",
}
"""Properties that tune a JDBC driver and have no effect here."""


def jdbc_or_sqlalchemy(url: object, user: object = None, password: object = None) -> URL:
    """The URL to connect to, with user and password from the options if they are given.

    Raises:
        InvalidOption: not a URL of a supported database, or an unknown property. The message does not
            contain the URL, which may hold a password.
    """
    if not isinstance(url, str | URL) or not str(url):
        raise InvalidOption("url: expected something like jdbc:postgresql://host/database")
    for option, value in (("user", user), ("password", password)):
        if value is not None and not isinstance(value, str):
            raise InvalidOption(f"{option}: expected text")
    text = url.render_as_string(hide_password=False) if isinstance(url, URL) else url
    found = _from_jdbc(text[5:]) if text.lower().startswith("jdbc:") else database_url(text)
    if taking(found.get_backend_name()) and found.get_backend_name() == "sqlite":
        found = _as_file(found)
    if found.get_driver_name() not in _DRIVERS:
        raise InvalidOption(
            f"url: the driver {found.get_driver_name()!r} is not supported, only {', '.join(_DRIVERS)}"
        )
    # A password left in the query (libpq's form) would be visible wherever the URL is shown.
    user_there, password_there = found.query.get("user"), found.query.get("password")
    if isinstance(user_there, str):
        found = found.set(username=user_there)
    if isinstance(password_there, str):
        found = found.set(password=password_there)
    found = found.difference_update_query(["user", "password"])
    if isinstance(user, str):
        found = found.set(username=user)
    if isinstance(password, str):
        found = found.set(password=password)
    return found


def _as_file(url: URL) -> URL:
    """Make the file's path absolute: tasks run in folders of their own."""
    if not url.database or url.database == ":memory:" or url.database.startswith("file:"):
        raise InvalidOption("url: tasks can reach an SQLite database only if it is a file")
    return url.set(database=str(Path(url.database).absolute()))


def _from_jdbc(text: str) -> URL:
    scheme, _, rest = text.partition(":")
    if scheme == "sqlite":
        return URL.create("sqlite", database=rest)
    if scheme not in _SCHEMES or not rest:
        raise InvalidOption(
            f"url: jdbc:{scheme}: is not supported; expected jdbc:postgresql:, mysql:, mariadb: or sqlite:"
        )
    try:
        parts = urlsplit(rest if rest.startswith("//") else f"//localhost/{rest}")
    except ValueError:
        raise InvalidOption("url: the host is invalid") from None
    if "@" in parts.netloc:
        raise InvalidOption("url: a JDBC address has no user before the host; use the options user, password")
    if "," in parts.netloc:
        raise InvalidOption("url: several hosts are not supported; name the one that takes writes")
    try:
        port = parts.port or _PORTS[scheme]
    except ValueError:
        raise InvalidOption("url: the port is not a number") from None
    found = URL.create(
        _SCHEMES[scheme], host=parts.hostname, port=port, database=unquote(parts.path[1:]) or None
    )
    return _with_properties(found, parse_qsl(parts.query, keep_blank_values=True))


def _with_properties(url: URL, properties: list[tuple[str, str]]) -> URL:
    for name, value in properties:
        lower = name.lower()
        if lower == "user":
            url = url.set(username=value)
        elif lower == "password":
            url = url.set(password=value)
        elif lower in _RENAMED and url.get_backend_name() == "postgresql":
            url = url.update_query_dict({_RENAMED[lower]: value})
        elif lower == "preparethreshold" and value == "0" and url.get_backend_name() == "postgresql":
            url = url.update_query_dict({"prepare_threshold": "none"})  # psycopg's 0: on first use
        elif lower == "currentschema" and url.get_backend_name() == "postgresql":
            url = url.update_query_dict({"options": f"-csearch_path={value}"})
        elif lower not in _WITHOUT_EFFECT:
            raise InvalidOption(f"url: the property {name!r} is not supported")
    return url
