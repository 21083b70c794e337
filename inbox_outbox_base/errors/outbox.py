"""The errors of `outbox.errors`, which draws their tree."""

from . import inbox as inbox_errors


class OutboxError(inbox_errors.InboxError):
    """Root of all errors that this package raises itself."""


class InvalidOption(OutboxError, inbox_errors.InvalidOption):
    """An option has a value that cannot be used; the message names both."""


class InvalidMessage(InvalidOption):
    """A topic, key, payload or header cannot be stored, or is larger than the limit."""


class WrongBucketCount(OutboxError, ValueError):
    """The database has another number of buckets: keys would lose their order."""


class UnsafeBroker(OutboxError, ValueError):
    """With this setting of the broker's client, messages could be lost or change their order."""


class UnsafeSequence(OutboxError, ValueError):
    """The sequence that numbers messages keeps several numbers for each session (CACHE), or is behind the
    numbers of waiting messages: messages would lose their order."""


class DatabaseRefused(OutboxError):
    """At a relay's first connection, the database refuses the role, its password, or the database's name."""


class UnusableConnection(OutboxError, inbox_errors.UnusableConnection):
    """The connection has no transaction that an outbox row could join, or its session writes to two databases
    without a two-phase commit."""


class NotAwaited(OutboxError, inbox_errors.NotAwaited):
    """A message was published on an asynchronous handle without `await`, so it is not written: the COMMIT is
    refused. That of an AsyncSession writes it, unless it is SQL text."""


class TransactionEnded(OutboxError, inbox_errors.TransactionEnded):
    """A Session's transaction was ended by something else, or was about to: SQL text, DDL or the driver.
    Earlier writes may be committed, but not the messages that the error names."""


class AlreadyPublished(OutboxError):
    """The outbox knows a message with this id, and was asked to raise this instead of ignoring it."""

    def __init__(self, *args: object, ids: tuple[str, ...] = ()) -> None:
        super().__init__(*args)
        self.ids = ids
        """The ids of the messages that were not added."""


class TablesMissing(OutboxError, inbox_errors.TablesMissing):
    """The outbox tables do not exist where they were expected."""


class UnsafeDatabase(OutboxError, inbox_errors.UnsafeDatabase):
    """A table, as it is in this database, cannot keep a promise: for example, it is distributed, a trigger
    drops rows, or policies hide rows from a relay or an operator. Nothing was committed; the message says
    what to do."""


class MessageNotFound(OutboxError, inbox_errors.MessageNotFound):
    """The outbox has no message with this id; it may already have been sent."""


class WrongState(OutboxError, inbox_errors.WrongStatus):
    """The message's state does not allow this, or somebody has just changed the message."""


class RelayRunning(OutboxError):
    """This can only be done while no relay of an older version is at work."""
