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

from inbox.errors import InboxError


class SparkWriterError(InboxError):
    """Root of everything this package raises by itself."""


class ColumnMismatch(SparkWriterError, ValueError):
    """A column that is missing, not known to the target, or of a type that it cannot hold exactly."""


class InvalidRow(SparkWriterError, ValueError):
    """A row whose key is NULL, empty, too long or not text, or with a value that its column would change
    silently: nothing of its partition was written."""


class VersionMismatch(SparkWriterError, RuntimeError):
    """Driver and executor do not run the same versions, so that what one sends the other may misread."""
