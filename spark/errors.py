"""What can go wrong in the Spark writer, as exceptions.

::

    SparkWriterError
    ├── ColumnMismatch   (ValueError)    the DataFrame and the target table do not fit together
    ├── InvalidRow       (ValueError)    a row has no usable key, or a value that would be changed
    └── VersionMismatch  (RuntimeError)  driver and executor run different versions

All are `inbox.errors.InboxError`. A wrong option is `inbox.errors.InvalidOption`, missing tables are
`inbox.errors.TablesMissing`. What a task raises reaches the driver inside Spark's own exception, with this
text in it.
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
    globals()[_name].__module__ = __name__  # what tracebacks say, and where a pickle looks
