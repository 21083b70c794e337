"""The errors of `inbox.errors`, which draws their tree."""

from sqlalchemy.exc import InvalidRequestError

from inbox_outbox_base.words.incoming import Verdict


class InboxError(Exception):
    """Root of all errors that this package raises itself."""


class InvalidOption(InboxError, ValueError):
    """An option has a value that cannot be used; the message names both."""


class InvalidKey(InvalidOption):
    """A business key is not 1 to 512 bytes of UTF-8 without NUL; or, with `key_time`, it has another form, or
    its time is more than a day ahead of the database's clock."""


class InvalidResult(InboxError, TypeError):
    """A result cannot be stored: it is not JSON, or too large."""


class UnsupportedDatabase(InboxError, NotImplementedError):
    """The guarantee has not been proven on this database, so it is not given."""


class UnusableConnection(InboxError, InvalidRequestError):
    """The connection has no transaction that an inbox row could join, or its session writes to two databases
    without a two-phase commit."""


class NotAwaited(InboxError, RuntimeError):
    """A method was called on an asynchronous connection or session without `await`, so it wrote nothing: the
    COMMIT is refused."""


class TablesMissing(InboxError, LookupError):
    """The inbox tables do not exist where they were expected."""


class UnsafeDatabase(InboxError):
    """A table, as it is in this database, cannot keep a promise: for example, it is distributed, or a trigger
    drops rows. Nothing was committed; the message says what to do."""


class PolicyConflict(InboxError):
    """An inbox asks for another mode, a shorter retention, another form of keys or another digest format than
    the table `inbox_consumer` has for its consumer. Nothing was taken; the message names both values."""


class TransactionAborted(InboxError):
    """The transaction could no longer commit when the body returned, or the body has used the connection for
    a message that is not new, without looking at `is_new`: nothing was written."""


class TransactionEnded(InboxError):
    """The transaction that was to hold our rows and the application's together was ended by something else:
    the body, SQL text, DDL or the driver. Earlier writes may be committed: a redelivery cannot finish the
    message."""


class LeaseLost(InboxError):
    """The claim has lost the message: its lease ran out and another worker took the message over, or an
    operator did. Nothing was written; do not acknowledge the message."""


class MessageNotFound(InboxError, LookupError):
    """The store has no record of this message."""


class WrongStatus(InboxError):
    """The message's status does not allow this, or somebody has just changed the message."""


class StepNotDone(InboxError):
    """Raise it in a step: the call has certainly not happened, so the step can simply run again."""


class GiveUp(InboxError):
    """Raise it in a handler: no attempt can succeed. Finished steps are undone, and the message is dead."""


class NotTaken(InboxError):
    """The message was neither taken now nor before: do not acknowledge it. Each verdict has its subclass."""

    verdict: Verdict
    """What the inbox says about the message."""

    def __init__(self, *args: object, retry_after: float | None = None) -> None:
        super().__init__(*args)
        self.retry_after = retry_after
        """Seconds after which to deliver the message again, if the inbox can tell."""


class TransientError(InboxError):
    """The same work may succeed if it is retried; if it already took effect, the inbox will say so."""


class CommitLost(TransientError):
    """The connection broke during COMMIT; it did not commit, or nobody could be asked whether it did."""


class StoreUnreachable(TransientError):
    """The store of status-table mode did not answer, after some retries."""


class MessageInFlight(NotTaken, TransientError):
    """Another worker is handling the message. It may still fail, so deliver the message again later."""

    verdict = Verdict.IN_FLIGHT


class PayloadMismatch(NotTaken):
    """The key was taken before, with a different payload: a person has to look."""

    verdict = Verdict.MISMATCH


class MessageTooOld(NotTaken):
    """The message is older than the retention: nobody can know whether it was taken before."""

    verdict = Verdict.TOO_OLD


class MessageDead(NotTaken):
    """The attempts of the message are used up."""

    verdict = Verdict.DEAD


class MessageHalted(NotTaken):
    """The outcome of one of the message's steps is unknown, and the step must not be repeated."""

    verdict = Verdict.HALTED
