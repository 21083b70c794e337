"""What can go wrong in the outbox, as exceptions.

::

    OutboxError
    ├── InvalidOption        (ValueError)           an option's value is not usable
    │   └── InvalidMessage                          a message that no row could hold, or that breaks a limit
    ├── WrongBucketCount     (ValueError)           the database has another number of buckets
    ├── UnsafeBroker         (ValueError)           a setting of the broker's client breaks the promise
    ├── UnsafeSequence       (ValueError)           sessions draw several numbers of messages at a time
    ├── DatabaseRefused                             it refuses the role, its password or the database's name
    ├── UnusableConnection   (InvalidRequestError)  no transaction to join, or one in two databases
    ├── TablesMissing        (LookupError)          the outbox tables are not in this database
    ├── MessageNotFound      (LookupError)          there is no such message
    ├── WrongState           (WrongStatus)          the message is not in a state in which this can be done
    └── RelayRunning                                a relay is at work where none may be

All are `inbox.errors.InboxError`; those that have a namesake there are that, too. `InvalidRequestError` is
SQLAlchemy's. Errors of the database driver come through as SQLAlchemy raises them.
"""

from inbox_outbox_base.errors.outbox import (
    DatabaseRefused,
    InvalidMessage,
    InvalidOption,
    MessageNotFound,
    OutboxError,
    RelayRunning,
    TablesMissing,
    UnsafeBroker,
    UnsafeSequence,
    UnusableConnection,
    WrongBucketCount,
    WrongState,
)

__all__ = [
    "DatabaseRefused",
    "InvalidMessage",
    "InvalidOption",
    "MessageNotFound",
    "OutboxError",
    "RelayRunning",
    "TablesMissing",
    "UnsafeBroker",
    "UnsafeSequence",
    "UnusableConnection",
    "WrongBucketCount",
    "WrongState",
]

for _name in __all__:
    globals()[_name].__module__ = __name__  # what tracebacks say, and where a pickle looks
