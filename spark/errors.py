"""The exceptions of the Spark writer.

    SparkWriterError
    ├── ColumnMismatch   (ValueError)    the DataFrame does not match the key or the target table
    ├── InvalidRow       (ValueError)    a row has no usable key, or a value that would be changed or refused
    └── VersionMismatch  (RuntimeError)  driver and executor run different versions

All derive from `inbox.errors.InboxError`. A wrong option raises `inbox.errors.InvalidOption`, missing tables
`inbox.errors.TablesMissing`. An error in a task reaches the driver inside Spark's own exception, which
contains its text.
"""

from inbox_outbox_base.errors.spark import (
    ColumnMismatch,
    InvalidRow,
    SparkWriterError,
    VersionMismatch,
)

__all__ = [
    "ColumnMismatch",
    "InvalidRow",
    "SparkWriterError",
    "VersionMismatch",
]

for _name in __all__:
    globals()[_name].__module__ = __name__  # shown in tracebacks, and used by pickle to find the class
