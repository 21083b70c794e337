"""The exceptions of the inbox.

    InboxError
    ├── InvalidOption        (ValueError)           an option's value is not usable
    │   └── InvalidKey                              a business key breaks the key rules
    ├── InvalidResult        (TypeError)            a result cannot be stored as JSON
    ├── UnsupportedDatabase  (NotImplementedError)  a dialect that has not been proven
    ├── UnusableConnection   (InvalidRequestError)  no transaction to join, or one in two databases
    ├── NotAwaited           (RuntimeError)         a method of an asynchronous inbox was not awaited
    ├── TablesMissing        (LookupError)          the inbox tables are not in this database
    ├── UnsafeDatabase                              a table cannot keep a promise: see `inbox.check`
    ├── PolicyConflict                              an inbox disagrees with its consumer's stored policy
    ├── TransactionAborted                          the body swallowed a database error
    ├── TransactionEnded                            the body committed or rolled back
    ├── NotTaken                                    the message was not taken: do not acknowledge it
    │   ├── MessageInFlight  (TransientError)       another worker is handling it: deliver it again later
    │   ├── PayloadMismatch                         the same key came with another payload
    │   ├── MessageTooOld                           older than the retention: perhaps taken before
    │   ├── MessageDead                             its attempts are used up
    │   └── MessageHalted                           a step's outcome is unknown, and it must not run again
    ├── LeaseLost                                   somebody else may hold the message by now
    ├── MessageNotFound      (LookupError)          there is no such message in status-table mode
    ├── WrongStatus                                 the message's status does not allow this
    ├── StepNotDone                                 raise it in a step: it has certainly not happened
    ├── GiveUp                                      raise it in a handler: no attempt can succeed
    └── TransientError                              deliver the message again
        ├── CommitLost                              the connection broke during COMMIT, which did not happen
        └── StoreUnreachable                        the store of status-table mode does not answer

`InvalidRequestError` is SQLAlchemy's. Errors of the database driver propagate as SQLAlchemy raises
them; `inbox.is_transient` says whether the same work can be retried after an error.
"""

from inbox_outbox_base.errors.inbox import (
    CommitLost,
    GiveUp,
    InboxError,
    InvalidKey,
    InvalidOption,
    InvalidResult,
    LeaseLost,
    MessageDead,
    MessageHalted,
    MessageInFlight,
    MessageNotFound,
    MessageTooOld,
    NotAwaited,
    NotTaken,
    PayloadMismatch,
    PolicyConflict,
    StepNotDone,
    StoreUnreachable,
    TablesMissing,
    TransactionAborted,
    TransactionEnded,
    TransientError,
    UnsafeDatabase,
    UnsupportedDatabase,
    UnusableConnection,
    WrongStatus,
)

__all__ = [
    "CommitLost",
    "GiveUp",
    "InboxError",
    "InvalidKey",
    "InvalidOption",
    "InvalidResult",
    "LeaseLost",
    "MessageDead",
    "MessageHalted",
    "MessageInFlight",
    "MessageNotFound",
    "MessageTooOld",
    "NotAwaited",
    "NotTaken",
    "PayloadMismatch",
    "PolicyConflict",
    "StepNotDone",
    "StoreUnreachable",
    "TablesMissing",
    "TransactionAborted",
    "TransactionEnded",
    "TransientError",
    "UnsafeDatabase",
    "UnsupportedDatabase",
    "UnusableConnection",
    "WrongStatus",
]

for _name in __all__:
    globals()[_name].__module__ = __name__  # what tracebacks say, and where a pickle looks
