"""Database URLs: ``jdbc:...`` or SQLAlchemy's form."""

from urllib.parse import parse_qsl, unquote, urlsplit

from sqlalchemy import URL

from inbox_outbox_base.checks.connecting import connecting, drivers
from inbox_outbox_base.checks.url import database_url
from inbox_outbox_base.databases.registry import taking
from inbox_outbox_base.errors.inbox import InvalidOption
from inbox_outbox_base.supported import FOLDERS


def jdbc_or_sqlalchemy(url: object, user: object = None, password: object = None) -> URL:
    """The URL to connect to, with user and password from the options if they are given.

    Raises:
        InvalidOption: not a URL of a supported database, or an unknown property. The message does not contain
            the URL, which may hold a password.
    """
    if not isinstance(url, str | URL) or not str(url):
        raise InvalidOption("url: expected something like jdbc:postgresql://host/database")
    for option, value, others in (
        ("user", user, ""),
        ("password", password, ", a function, or a command as a list of texts"),
    ):
        if value is not None and not isinstance(value, str):
            raise InvalidOption(f"{option}: expected text{others}")
    text = url.render_as_string(hide_password=False) if isinstance(url, URL) else url
    found = _from_jdbc(text[5:]) if text.lower().startswith("jdbc:") else database_url(text)
    taking(found.get_backend_name())  # or it is not supported
    try:
        found = connecting(found.get_backend_name()).reachable(found)
    except ValueError as why:
        raise InvalidOption(f"url: {why}") from None
    ours = dict.fromkeys(connecting(dialect).driver for dialect in FOLDERS)
    if found.get_driver_name() not in ours:
        raise InvalidOption(
            f"url: the driver {found.get_driver_name()!r} is not supported, only {', '.join(ours)}"
        )
    # A password left in the query, as libpq allows, would be visible wherever the URL is shown.
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


def _from_jdbc(text: str) -> URL:
    scheme, _, rest = text.partition(":")
    if scheme in FOLDERS and connecting(scheme).port is None:
        return URL.create(scheme, database=rest)
    if scheme not in FOLDERS or not rest:
        *others, last = (f"{dialect}:" for dialect in FOLDERS)
        raise InvalidOption(
            f"url: jdbc:{scheme}: is not supported; expected jdbc:{', '.join(others)} or {last}"
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
        port = parts.port or connecting(scheme).port
    except ValueError:
        raise InvalidOption("url: the port is not a number") from None
    found = URL.create(
        drivers()[scheme], host=parts.hostname, port=port, database=unquote(parts.path[1:]) or None
    )
    return _with_properties(found, parse_qsl(parts.query, keep_blank_values=True))


def _with_properties(url: URL, properties: list[tuple[str, str]]) -> URL:
    database = connecting(url.get_backend_name())
    idle = frozenset[str]().union(*(connecting(dialect).idle_properties for dialect in FOLDERS))
    for name, value in properties:
        lower = name.lower()
        found = database.with_property(url, lower, value)
        if found is not None:
            url = found
        elif lower == "user":
            url = url.set(username=value)
        elif lower == "password":
            url = url.set(password=value)
        elif lower not in idle:
            raise InvalidOption(f"url: the property {name!r} is not supported")
    return url
