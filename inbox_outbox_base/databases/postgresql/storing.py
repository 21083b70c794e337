"""PostgreSQL: the collation "C" compares byte for byte, and times have time zones."""

from sqlalchemy import Text
from sqlalchemy.types import TypeEngine

from inbox_outbox_base.tables.storing import Storing


class PostgreSQLStoring(Storing):
    """Its own clock is not `now()`, which stands still during a transaction."""

    has_time_zones = True
    numbers_any_column = True

    def text(self, longest: int) -> TypeEngine[str]:
        return Text(collation="C")

    def from_now(self, seconds: str) -> str:
        return f"(clock_timestamp() + make_interval(secs => {seconds}))"

    def readable(self, time: str) -> str:
        # Times before Python's first year or after its last, such as infinity, are moved to that year.
        first, last = (f"TIMESTAMPTZ '{each} 00:00Z'" for each in ("0001-01-02", "9999-12-30"))
        return f"CASE WHEN {time} < {first} THEN {first} WHEN {time} > {last} THEN {last} ELSE {time} END"
