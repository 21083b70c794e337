"""SQLite: times are text, and only an INTEGER numbers rows."""

from sqlalchemy import Integer
from sqlalchemy.types import TypeEngine

from inbox_outbox_base.tables.storing import Storing

_NOW = "strftime('%Y-%m-%d %H:%M:%f', 'now'"


class SQLiteStoring(Storing):
    """It enforces no length."""

    now = f"({_NOW}))"
    # Otherwise SQLite reuses the highest number once its row is deleted.
    numbered_options = {"autoincrement": True}  # noqa: RUF012 - nobody changes it

    def number(self) -> TypeEngine[int]:
        return Integer()

    def from_now(self, seconds: str) -> str:
        return f"({_NOW}, {seconds} || ' seconds'))"
