"""The stores of status-table mode, one file for each kind."""

from inbox_outbox_base.words.incoming import Status

from .records import (
    UNDO_ATTEMPTS,
    USED_UP,
    Change,
    ClaimAnswer,
    HeldRecord,
    Record,
    Request,
    new_record,
    remember,
)
from .redis import RedisStore
from .sql import SqlStore
from .store import Store

__all__ = [
    "UNDO_ATTEMPTS",
    "USED_UP",
    "Change",
    "ClaimAnswer",
    "HeldRecord",
    "Record",
    "RedisStore",
    "Request",
    "SqlStore",
    "Status",
    "Store",
    "new_record",
    "remember",
]
