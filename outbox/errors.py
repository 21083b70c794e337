"""The exceptions of the outbox.

    OutboxError
    ├── InvalidOption        (ValueError)           an option's value is not usable
    │   └── InvalidMessage                          a message that cannot be stored or exceeds a limit
    ├── WrongBucketCount     (ValueError)           the database has another number of buckets
    ├── UnsafeBroker         (ValueError)           a setting of the broker's client breaks the guarantee
    ├── UnsafeSequence       (ValueError)           message numbers are cached, or drawn a second time
    ├── DatabaseRefused                             the server rejects the role, password or database name
    ├── UnusableConnection   (InvalidRequestError)  no transaction to join, or one in two databases
    ├── NotAwaited           (RuntimeError)         a publish on an AsyncConnection was not awaited
    ├── TransactionEnded                            something else ended a Session's transaction
    ├── AlreadyPublished                            the outbox knows the message's id
    ├── TablesMissing        (LookupError)          the outbox tables are not in this database
    ├── UnsafeDatabase                              a table cannot keep a promise: see `outbox.check`
    ├── MessageNotFound      (LookupError)          there is no such message
    ├── WrongState           (WrongStatus)          the message's state does not allow this
    └── RelayRunning                                a relay of an older version is running

All derive from `inbox.errors.InboxError`; an error with a namesake there also derives from the namesake.
`InvalidRequestError` is SQLAlchemy's. Database driver errors come through as SQLAlchemy raises them.
"""

from inbox_outbox_base.errors.outbox import (
    AlreadyPublished,
    DatabaseRefused,
    InvalidMessage,
    InvalidOption,
    MessageNotFound,
    NotAwaited,
    OutboxError,
    RelayRunning,
    TablesMissing,
    TransactionEnded,
    UnsafeBroker,
    UnsafeDatabase,
    UnsafeSequence,
    UnusableConnection,
    WrongBucketCount,
    WrongState,
)

__all__ = [
    "AlreadyPublished",
    "DatabaseRefused",
    "InvalidMessage",
    "InvalidOption",
    "MessageNotFound",
    "NotAwaited",
    "OutboxError",
    "RelayRunning",
    "TablesMissing",
    "TransactionEnded",
    "UnsafeBroker",
    "UnsafeDatabase",
    "UnsafeSequence",
    "UnusableConnection",
    "WrongBucketCount",
    "WrongState",
]

for _name in __all__:
    globals()[_name].__module__ = __name__  # shown in tracebacks, and used by pickle to find the class
