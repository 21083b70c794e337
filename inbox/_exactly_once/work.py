"""The object that a handler's body works with."""

from typing import Any, Generic, TypeVar

from inbox_outbox_base.checks.results import normalised
from inbox_outbox_base.errors.inbox import InvalidOption, TransactionEnded
from inbox_outbox_base.words.incoming import Verdict

from .transaction import Transaction

C = TypeVar("C")
S = TypeVar("S")


class Work(Generic[C, S]):
    """One message inside its transaction, on a connection (C) and, unless S is None, in a session (S)."""

    __slots__ = ("_session", "_transaction", "connection")

    def __init__(self, transaction: Transaction, connection: C, session: S | None) -> None:
        self._transaction = transaction
        self._session = session
        self.connection: C = connection
        """The connection that the transaction is on; do not commit or roll it back."""

    def __repr__(self) -> str:
        return f"Work(verdict={self._transaction.verdict.name})"

    def __bool__(self) -> bool:
        return self.is_new

    @property
    def session(self) -> S:
        """The transaction's ORM session, if it was begun with a sessionmaker or a scoped_session."""
        if self._session is None:
            raise AttributeError("work.session: the transaction was begun on an engine; use work.connection")
        return self._session

    @property
    def verdict(self) -> Verdict:
        """What the inbox says about the message."""
        self._transaction.is_asked = True
        return self._transaction.verdict

    @property
    def is_new(self) -> bool:
        """Whether to run the message: only if the verdict is `NEW`."""
        return self.verdict is Verdict.NEW

    @property
    def result(self) -> Any:
        """A JSON value: what you set; for a duplicate, what the first run set.

        It reads back as a duplicate will see it: a tuple becomes a list.

        Raises, when it is set:
            InvalidResult: not JSON, or more than a million bytes of JSON.
            InvalidOption: the message is not new.
            TransactionEnded: the transaction is over.
        """
        self._transaction.is_asked = True
        return self._transaction.result

    @result.setter
    def result(self, value: Any) -> None:
        if not self.is_new:
            raise InvalidOption(f"work.result: only a new message gets a result, this one is {self.verdict}")
        if self._transaction.is_over:
            raise TransactionEnded("work.result: the transaction is over, so the result cannot be stored")
        self._transaction.result = normalised(value)


def handle_of(work: Work[C, S]) -> C | S:
    """The handler body's first argument: the session, or the connection if there is none."""
    return work.connection if work._session is None else work._session  # noqa: SLF001 - of this module


def begins_body(work: Work[Any, Any], unfinished: set[bytes]) -> bool:
    """Whether to run a handler's body, whose claim is then `unfinished`.

    Raises:
        TransactionEnded: an earlier attempt, which did not finish, had committed.
    """
    transaction = work._transaction  # noqa: SLF001 - users need not see it
    if transaction.found in unfinished:
        raise TransactionEnded(
            "an earlier attempt ended the transaction and then raised an error: earlier writes and the inbox "
            "row are committed, so the message would be a duplicate"
        )
    if work.is_new:
        unfinished.add(transaction.claim)
    return work.is_new
