"""Who counts a failure of a message: its listener, unless an inbox of status-table mode has counted it in the
record of the same message. Then the listener also follows that record: deliver the message again, or not.

The rule: a claim answers for the listener's message, and for the errors that came out of it, unless the
exactly-once path has taken a message before it, whose part the claim then is. So

- an error came out of a claim if it left the claim's block, or was raised because of such an error, or while
  one was handled (`__cause__`, else `__context__`); a group also if each of its errors did. `GiveUp` and the
  other errors that are answers themselves did not;
- several claims answer together, also one inside another: while one of them may still succeed, the message is
  delivered again;
- what was recorded is kept with the message, in a context variable, and not on the error: several messages
  may get the same object, as from a future for which they all waited.

In doubt both count, and the message is delivered again: in a thread without the message's context, if `_MOST`
other errors have left claims since, and after a transaction that has taken a message and ended.
"""

import threading
from collections import deque
from collections.abc import Iterable
from contextvars import ContextVar
from typing import NamedTuple

from inbox._refusing.refusal import RefusalNote
from inbox_outbox_base.errors.groups import leaves
from inbox_outbox_base.errors.inbox import GiveUp, InvalidOption, InvalidResult, NotTaken, TransactionEnded
from inbox_outbox_base.words.incoming import Verdict

_LOSES_LEAST = (
    Verdict.NEW,
    Verdict.IN_FLIGHT,
    Verdict.DEAD,
    Verdict.HALTED,
    Verdict.MISMATCH,
    Verdict.TOO_OLD,
)
"""Which verdict counts, if several inboxes of one handler have failed or refused the message."""

_ANSWERS = (GiveUp, InvalidOption, InvalidResult, TransactionEnded)
"""What the code around a claim raises to decide about the message itself."""

_MOST = 100
"""The most errors that are kept, with all that their frames refer to: a handler may go on after each."""


class Recorded(NamedTuple):
    """An inbox's answer to a message whose handler raised an error."""

    verdict: Verdict
    """`NEW` if it failed, and another attempt follows."""
    retry_after: float | None
    """Seconds after which to deliver the message again; None if it is given up, or if nobody knows."""


class Recordings:
    """What inboxes have recorded and refused while one message of a listener was handled."""

    def __init__(self) -> None:
        self.is_heard = True
        """Whether claims that begin now answer for the message."""
        self._lock = threading.Lock()
        self._errors: deque[BaseException] = deque(maxlen=_MOST)
        self._answer: Recorded | None = None
        self._refused: list[RefusalNote] | None = []
        self.failed: RefusalNote | None = None
        """The message, in the last inbox that an error has left, unless that inbox has a record of it."""

    def begin(self) -> None:
        """Call this in the context in which the message is going to be handled."""
        _current.set(self)

    def end(self) -> None:
        """The message is handled: claims of tasks that it has left behind are not heard."""
        self.is_heard, self._errors = False, deque(maxlen=0)

    def add(self, error: BaseException, recorded: Recorded) -> None:
        """Note what a claim has recorded because of this error."""
        with self._lock:  # threads of the handler may end their claims at the same time
            self._errors.extend(leaves(error))
            self.failed = None
            self._answer = _together([recorded] if self._answer is None else [self._answer, recorded])

    def refuse(self, note: RefusalNote) -> bool:
        """Keep what an inbox has refused until the listener decides; False if it has."""
        with self._lock:
            if self._refused is None:
                return False
            self._refused.append(note)
            return True

    def take_refused(self) -> list[RefusalNote]:
        """What was refused; the listener has decided."""
        with self._lock:
            refused, self._refused = self._refused or [], None
            return refused

    def answer(self, error: BaseException) -> Recorded | None:
        """The answer of the message's inboxes to the error that its handler has raised, refusals included;
        None if there is an error that no inbox knows."""
        recorded = {id(each) for each in tuple(self._errors)}
        refusals = [each for each in leaves(error) if isinstance(each, NotTaken)]
        if not (
            all(isinstance(each, NotTaken) or _came_out(each, recorded) for each in leaves(error))
            or _came_out(error, recorded)
        ):
            return None
        answers = [Recorded(each.verdict, each.retry_after) for each in refusals]
        return _together([*answers, self._answer] if self._answer is not None else answers)


_current: ContextVar[Recordings | None] = ContextVar("inbox_recordings", default=None)


def current() -> Recordings | None:
    """Those of the listener's message that this context handles."""
    return _current.get()


def answering() -> Recordings | None:
    """What a claim that begins now tells its end to; None if it does not answer for a listener's message."""
    recordings = current()
    return recordings if recordings is not None and recordings.is_heard else None


def takes_message() -> None:
    """The exactly-once path has taken a message: claims that begin from now on are for parts of it."""
    if (recordings := current()) is not None:
        recordings.is_heard = False


def _together(answers: Iterable[Recorded]) -> Recorded:
    """The one that loses least, and the longest delay."""
    verdicts, delays = zip(*answers, strict=True)
    known = [each for each in delays if each is not None]
    return Recorded(min(verdicts, key=_LOSES_LEAST.index), max(known, default=None))


def _came_out(error: BaseException | None, recorded: set[int], above: frozenset[int] = frozenset()) -> bool:
    """Whether it is one of these errors, or was raised because of one. `above` are errors that lead to it."""
    seen = set(above)  # an error may be its own cause
    while error is not None and id(error) not in seen:
        if id(error) in recorded:
            return True
        if isinstance(error, _ANSWERS):
            return False
        seen.add(id(error))
        if isinstance(error, BaseExceptionGroup) and all(
            _came_out(each, recorded, frozenset(seen)) for each in error.exceptions
        ):
            return True
        error = error.__context__ if error.__cause__ is None else error.__cause__
    return False
