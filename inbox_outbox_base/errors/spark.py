"""The errors of `spark.errors`, which draws their tree."""

from .inbox import InboxError


class SparkWriterError(InboxError):
    """Root of everything this package raises by itself."""


class ColumnMismatch(SparkWriterError, ValueError):
    """A column that is missing, not known to the target, or of a type that it cannot hold exactly."""


class InvalidRow(SparkWriterError, ValueError):
    """A row whose key is NULL, empty, too long or not text, or with a value that its column would change
    silently: nothing of its partition was written."""


class VersionMismatch(SparkWriterError, RuntimeError):
    """Driver and executor do not run the same versions, so that what one sends the other may misread."""
