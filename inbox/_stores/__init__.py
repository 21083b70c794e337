"""Where status-table mode keeps its records, one file for each kind of store."""

from ._records import (
    LONGEST_ERROR,
    UNDO_ATTEMPTS,
    USED_UP,
    Answer,
    Change,
    Held,
    Record,
    Request,
    Status,
    new_record,
    remember,
)
from ._store import Store
from .redis import RedisStore
from .sql import SqlStore

__all__ = [
    "LONGEST_ERROR",
    "UNDO_ATTEMPTS",
    "USED_UP",
    "Answer",
    "Change",
    "Held",
    "Record",
    "RedisStore",
    "Request",
    "SqlStore",
    "Status",
    "Store",
    "new_record",
    "remember",
]
