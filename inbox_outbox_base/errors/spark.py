"""The errors of `spark.errors`, which draws their tree."""

from .inbox import InboxError


class SparkWriterError(InboxError):
    """Root of all errors that this package raises itself."""


class ColumnMismatch(SparkWriterError, ValueError):
    """A column is missing, not known to the target, or of a type that the target cannot hold exactly."""


class InvalidRow(SparkWriterError, ValueError):
    """A row's key is NULL, empty, too long or not text, a value would be changed silently by its column, or
    the database refuses it. Nothing of its partition was written, and the text has no value of the row."""


class VersionMismatch(SparkWriterError, RuntimeError):
    """Driver and executor run different versions, so that one may misread what the other sends."""
