"""PostgreSQL: through psycopg, which does not read all of its settings from a URL."""

from typing import Any

from sqlalchemy import URL

from inbox_outbox_base.checks.connecting import Connecting

_THRESHOLD = "prepare_threshold"
_SAME = {"sslmode", "sslrootcert", "sslcert", "sslkey"}
"""Properties of the JDBC driver that have the same name in psycopg."""


class PostgreSQLConnecting(Connecting):
    """``?prepare_threshold=none`` turns prepared statements off, for poolers in transaction mode."""

    driver = "psycopg"
    aliases = ("postgres",)
    extra = "binary"
    port = 5432
    idle_properties = frozenset(
        {
            "rewritebatchedinserts",
            "preparethreshold",
            "stringtype",
            "defaultrowfetchsize",
            "tcpkeepalive",
            "applicationname",
        }
    )

    def for_engine(self, url: URL) -> tuple[URL, dict[str, Any]]:
        value = url.query.get(_THRESHOLD)
        if value is None or not url.drivername.endswith(f"+{self.driver}"):
            return url, {}
        if value != "none" and not (isinstance(value, str) and value.isdecimal()):
            raise ValueError(f"{_THRESHOLD}: expected a whole number or none")
        threshold = None if value == "none" else int(value)
        return url.difference_update_query([_THRESHOLD]), {_THRESHOLD: threshold}

    def with_property(self, url: URL, name: str, value: str) -> URL | None:
        if name in _SAME:
            return url.update_query_dict({name: value})
        if name == "preparethreshold" and value == "0":
            return url.update_query_dict({_THRESHOLD: "none"})  # psycopg's 0: on first use
        if name == "currentschema":
            return url.update_query_dict({"options": f"-csearch_path={value}"})
        return None
