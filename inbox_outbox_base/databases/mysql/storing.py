"""MySQL and MariaDB: text that compares byte for byte is stored as bytes."""

from sqlalchemy.dialects.mysql import DATETIME, LONGBLOB, MEDIUMTEXT, VARBINARY
from sqlalchemy.types import TypeEngine

from inbox_outbox_base.tables.storing import Storing


class MySQLStoring(Storing):
    """InnoDB, and times without a time zone."""

    # Not now(), which depends on the session's time zone.
    now = "(utc_timestamp(6))"
    has_binary_text = True
    options = {"engine": "InnoDB", "charset": "utf8mb4"}  # noqa: RUF012 - nobody changes it

    def text(self, longest: int) -> TypeEngine[bytes]:
        return VARBINARY(longest)

    def time(self) -> DATETIME:
        return DATETIME(fsp=6)

    def binary(self, longest: int) -> TypeEngine[bytes]:
        return VARBINARY(longest)

    def long_text(self) -> MEDIUMTEXT:
        return MEDIUMTEXT()

    def long_binary(self) -> LONGBLOB:
        return LONGBLOB()

    def from_now(self, seconds: str) -> str:
        return f"(utc_timestamp(6) + INTERVAL {seconds} SECOND)"

    def movable(self, time: str) -> str:
        # A zero date can be stored already, but not written again.
        return f"GREATEST({time}, TIMESTAMP '1000-01-01 00:00:00')"
