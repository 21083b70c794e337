"""The contract between the inbox and a database, with portable defaults."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import Any, Literal, NamedTuple

from sqlalchemy import Connection, Engine, Pool, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import ConnectionPoolEntry

from inbox_outbox_base.databases.key_range import KeyRange
from inbox_outbox_base.errors import codes
from inbox_outbox_base.tables.inbox import Tables

from . import taking_statements
from .taking_statements import Aging


@dataclass(slots=True)  # one for every message, and frozen costs three times as much
class Attempt:
    """One attempt at taking one message."""

    tables: Tables
    consumer: str
    key: str
    claim: bytes
    digest: bytes | None
    marks: bool = False
    """Whether taking it also marks the transaction, where this costs no statement."""

    def row(self) -> dict[str, Any]:
        """The parameters of an INSERT."""
        return {
            "consumer": self.consumer,
            "key": self.key,
            "claim": self.claim,
            "digest": self.digest,
        }

    def where(self) -> dict[str, Any]:
        """The parameters of a WHERE on this key."""
        return {"consumer_": self.consumer, "key_": self.key}


@dataclass(frozen=True, slots=True)
class KeyBatch:
    """One attempt at taking many messages of one consumer."""

    tables: Tables
    consumer: str
    claim: bytes
    keys: Sequence[str]
    """Distinct, in byte order: batches that meet their common keys in the same order cannot deadlock."""
    digests: Mapping[str, bytes | None] | None = None
    """By key; None if no payloads were given."""
    in_range: bool = False
    """Whether the keys name their time, so that keys below the consumer's horizon are not taken."""

    def rows(self) -> list[dict[str, Any]]:
        """The parameters of an INSERT for each."""
        digests = self.digests or {}
        return [
            Attempt(self.tables, self.consumer, key, self.claim, digests.get(key)).row() for key in self.keys
        ]

    def where(self) -> dict[str, Any]:
        """The parameters of a WHERE on these keys."""
        return {"consumer_": self.consumer, "keys": self.keys}


@dataclass(frozen=True, slots=True)
class Stored:
    """The committed row of a key that was taken before (or earlier in this transaction)."""

    claim: bytes | None
    """None if the row was written in bulk."""
    digest: bytes | None
    result: str | None


class KeyRow(NamedTuple):
    """The row of a key of a batch."""

    claim: bytes | None
    digest: bytes | None


pooled = Connection.connection.fget  # type: ignore[attr-defined]
"""The connection's place in the pool, without the check around what a body does with it."""


def driver_of(connection: Connection) -> Any:
    """The driver's connection, also if a body has detached it from its pool."""
    place = pooled(connection)
    if place.is_detached:
        return connection.dialect.get_driver_connection(place.dbapi_connection)
    return place.driver_connection


LEVEL = "inbox_isolation_level"
"""An option of engines: the isolation level of the connections that `connected` makes of them. SQLAlchemy's
own option gives way to that of the engine from which an engine is derived, and to listeners."""

IMPATIENT = "inbox_impatient"
"""An option of engines: whoever made it limits the time of statements, so one that took too long is not tried
again."""


def at_level(engine: Engine, level: str) -> Engine:
    """The engine with this isolation level, whatever level it has itself; for `connected`."""
    return engine.execution_options(**{LEVEL: level})


_BORROWED = "inbox: how many settings of the session have another value"


def _refuse_marked(_: object, entry: ConnectionPoolEntry | None, __: object) -> None:
    """A pool takes a connection back. A signal's exception can come before the first line that would put a
    setting back."""
    if entry is not None and entry.info.get(_BORROWED):
        raise RuntimeError("interrupted while a setting of the session had another value: discarded")


event.listen(Pool, "reset", _refuse_marked)


class Borrowed(AbstractContextManager[None]):
    """Around statements of ours that need another value of a setting of the session. It has its own value
    again after every error, also one that a signal handler raises; else the connection does not return to the
    pool."""

    # A generator would end too late if a signal's exception came right after its first part.

    def __init__(
        self, connection: Connection, change: Callable[[], object], put_back: Callable[[], object]
    ) -> None:
        self._connection = connection
        self._change = change
        self._put_back = put_back

    def __enter__(self) -> None:
        self._info = self._connection.info  # of this one, also after it was lost
        self._count(1)
        try:
            self._change()
        except DBAPIError:
            self._count(-1)
            raise  # it was refused
        except BaseException:  # nobody knows whether it was sent, so whether there is something to put back
            self._discard()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        is_as_before = False
        try:
            is_lost = isinstance(error, DBAPIError) and codes.breaks_connection(error)
            if not (is_lost or self._connection.invalidated):
                self._put_back()
                self._count(-1)
                is_as_before = True
        finally:
            if not is_as_before:
                self._discard()

    def _count(self, change: int) -> None:
        self._info[_BORROWED] = self._info.get(_BORROWED, 0) + change

    def _discard(self) -> None:
        if not (self._connection.closed or self._connection.invalidated):
            self._connection.invalidate()


class State:
    """What the driver knows about a transaction, without a statement."""

    tells_end = True
    """Whether it knows of an end that somebody else has made."""

    tells_undone = False
    """Whether `is_aborted` is True of every transaction that an error has undone."""

    def __init__(self, database: "Taking", connection: Connection) -> None:
        self._database = database
        self._connection = connection

    def reported(self) -> object:
        """What the server last reported of a setting that marks a transaction. It is a mark if it differs
        after `take` from what it was before."""
        return None

    def is_ended(self, mark: object = None) -> bool:
        """Whether the transaction is over already. Another one may be open: it does not have the mark, if
        there is one."""
        return self._database.is_ended(self._connection)

    def ask_after_error(self) -> None:
        """If the driver does not know whether a statement that failed had ended the transaction, ask the
        server. If nobody answers, the next statement will find the connection lost."""

    def is_undone_by(self, error: DBAPIError) -> bool:
        """Right after this error: whether it has undone the transaction, although the session goes on. The
        server is asked, because one number can stand for several errors."""
        if not codes.undoes(error):
            return False
        self.ask_after_error()
        return self.is_ended()

    def was_undone(self) -> bool:
        """Once the transaction is over: whether an error of the last statement has undone it. The server is
        asked, for who has used the driver's connection."""
        return False

    def is_reading(self) -> bool:
        """Whether the driver would drop the unread rest of a result if another statement were sent."""
        return False

    def database(self) -> str | None:
        """The database in which the session looks for tables, if code may change that."""
        return None

    def is_aborted(self) -> bool:
        """Whether COMMIT would silently keep nothing, or only a part."""
        return self._database.is_aborted(self._connection)


class Taking(ABC):
    """One subclass for each database; this class holds the portable defaults."""

    aborts = False
    """Whether an error of a statement aborts its transaction."""

    inserts_in_range = False
    """Whether the INSERT itself leaves out keys that name a time whose keys were forgotten."""

    locks_rows = True
    """Whether transactions that write different keys do not block each other."""

    has_server = True
    """Whether there is a server, which may fail to answer."""

    has_escapes = False
    """Whether a backslash quotes the next character of a text in SQL, and # begins a comment."""

    begins_with_any = True
    """Whether any statement begins a transaction. If not, a savepoint can be all of it."""

    own_isolation: Literal["READ COMMITTED", "SERIALIZABLE"] = "READ COMMITTED"
    """The isolation level of our own transactions. At a higher level, a look after a wait would not see the
    change that it waited for, and on MySQL a purge would block inserts next to old rows."""

    @abstractmethod
    def take(self, connection: Connection, attempt: Attempt, wait: float) -> Literal[True] | Stored | None:
        """Insert the row: True if it is ours now, the stored row if the key was taken before, None if
        somebody else is still taking it after `wait` seconds. The transaction stays usable in every case."""

    @abstractmethod
    def take_many(self, connection: Connection, batch: KeyBatch, wait: float) -> set[str] | None:
        """Insert the rows in one statement. Returns the keys that are ours now, or None if somebody else is
        still taking one of them after `wait` seconds: ask again for fewer keys."""

    def take_in_range(
        self, connection: Connection, attempt: Attempt, wait: float, sure_from: Callable[[], str]
    ) -> bool | Stored | None:
        """As `take`, for a key that names its time: False if the consumer has forgotten the keys of that
        time. `sure_from` as for `key_range`.

        Raises:
            TransientError: the consumer has no partition for this key yet; nothing was written.
        """
        taken = self.take(connection, attempt, wait)
        is_ours = taken is True or (isinstance(taken, Stored) and taken.claim == attempt.claim)
        if is_ours and attempt.key < self.key_range(connection, attempt, attempt.key, sure_from).first:
            self.give_back(connection, attempt, [attempt.key])
            return False
        return taken

    def key_range(
        self, connection: Connection, of: "Attempt | KeyBatch", lowest: str, sure_from: Callable[[], str]
    ) -> KeyRange:
        """Which keys the consumer takes, as the newest commit says.

        Called after keys were taken: a key that has been forgotten before was below it by then. If this
        transaction cannot see the newest commit, its error is one for which `is_transient` is true.

        Args:
            lowest: the lowest key in question.
            sure_from: where looking costs others their time, it is left out for keys from the returned one
                on, which this machine's clock knows to be kept.
        """
        found = connection.execute(taking_statements.lowest_key(of.tables), {"consumer_": of.consumer})
        return KeyRange(found.scalar_one_or_none() or "", None)

    def give_back(self, connection: Connection, attempt: "Attempt | KeyBatch", keys: Collection[str]) -> None:
        """Keys that this attempt has taken do not count as taken."""
        given_back = {"consumer_": attempt.consumer, "claim_": attempt.claim, "keys": list(keys)}
        if keys:
            connection.execute(taking_statements.give_back(attempt.tables), given_back)

    @abstractmethod
    def settled(self, connection: Connection, attempt: Attempt, wait: float) -> Stored | None:
        """Wait until no other transaction is writing the key's row, and return it; on a new connection."""

    @abstractmethod
    def unusable_setting(self, driver: Any) -> str | None:
        """A setting of the driver's connection that would damage our values: its name, its value and what was
        expected; None if there is none. Sends nothing."""

    @abstractmethod
    def is_autocommit(self, connection: Connection) -> bool:
        """Whether each statement on this connection commits. May begin SQLAlchemy's transaction, as the next
        statement would."""

    def place(self, connection: Connection) -> Hashable:
        """What the driver knows, without a statement, of the server, database and schema that it is on."""
        return None

    def role(self, connection: Connection) -> Hashable:
        """The current role, where it decides to which table a name leads."""
        return None

    def local_settings(self, connection: Connection) -> Hashable:
        """What may be set until the transaction ends and decides to which table a name leads, and with which
        rights. Asks the server; None if there is no such setting."""
        return None

    @abstractmethod
    def delete_oldest(self, connection: Connection, aging: Aging, parameters: dict[str, Any]) -> list[Any]:
        """Delete one batch of old rows that nobody has locked; return what says how old each was."""

    def delete_loads(
        self, connection: Connection, tables: Tables, parameters: dict[str, Any], after: Any
    ) -> tuple[int, Any]:
        """Delete one batch of a consumer's rows that were written with these loads, and that nobody has
        locked. Return how many, and where the next batch begins; None if this was the last.

        Args:
            parameters: consumer_, loads and batch.
            after: where this batch begins; None at first.
        """
        # On databases whose index holds every row, rows written in bulk have their own time.
        return 0, None

    @abstractmethod
    def risks(self, connection: Connection) -> list[str]:
        """Settings, with their values, that let the database lose committed data in a crash."""

    def state(self, connection: Connection) -> "State":
        """What the driver knows about the transaction on this connection."""
        return State(self, connection)

    @abstractmethod
    def is_ended(self, connection: Connection) -> bool:
        """Whether the transaction on this connection is over already."""

    def may_have_written(self, connection: Connection) -> bool:
        """Whether the transaction on this connection may have changed something; True if nobody can tell."""
        return not self.is_ended(connection)

    def protected(self, connection: Connection) -> AbstractContextManager[object]:
        """Statements inside can fail without ending the caller's transaction; if a plain SELECT would wait
        for locks, they do not."""
        return nullcontext()

    def catch_up(self, connection: Connection) -> None:  # noqa: B027 - mostly, there is nothing to do
        """Before the first read of a transaction: see what others had committed when this is called. A server
        sees it anyway; a node of a cluster may have to wait for it."""

    def committing_each(self, engine: Engine) -> Engine:
        """The engine for statements that each commit, inside `briefly`."""
        return at_level(engine, "AUTOCOMMIT")

    def briefly(self, connection: Connection, wait: float) -> AbstractContextManager[None]:
        """Around statements that each commit: they wait for locks at most `wait` seconds, unless they set
        their own limit."""
        return nullcontext()

    def waiting(self, connection: Connection, wait: float) -> AbstractContextManager[None]:
        """Around statements of one transaction: the same."""
        return nullcontext()

    def cancel(self, driver: Any) -> None:  # noqa: B027 - most servers end it themselves
        """From another thread, let the server end this connection's wait for a lock."""

    def hidden_socket(self, driver: Any) -> int | None:
        """Before a call: its descriptor, if the driver does not show it to other threads during the call."""
        return None

    def socket_of(self, driver: Any) -> int:
        """The file descriptor of the connection's socket."""
        raise NotImplementedError

    def is_aborted(self, connection: Connection) -> bool:
        """Whether the driver knows that COMMIT would silently keep nothing, or only a part."""
        return False

    def is_there(self, connection: Connection, attempt: Attempt) -> bool:
        """Whether the row that this attempt wrote is there: some errors undo a transaction but not the
        session, and only the row tells."""
        stored = self.find(connection, attempt)
        return stored is not None and stored.claim == attempt.claim

    def find(self, connection: Connection, attempt: Attempt) -> Stored | None:
        """The key's row, if this transaction can see it."""
        row = connection.execute(taking_statements.find(attempt.tables), attempt.where()).one_or_none()
        return None if row is None else Stored(*row)

    def find_many(self, connection: Connection, batch: KeyBatch) -> dict[str, KeyRow]:
        """Which of the keys exist."""
        rows = connection.execute(taking_statements.find_many(batch.tables), batch.where())
        return {key: KeyRow(claim, digest) for key, claim, digest in rows}

    def now(self, connection: Connection) -> datetime:
        """The database's clock."""
        now: datetime = connection.execute(taking_statements.clock()).scalar_one()
        return now
