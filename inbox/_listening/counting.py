"""Who counts a failure of a message: its listener, unless an inbox of status-table mode has counted it in the
record of the same message. Then the listener also follows that record: deliver the message again, or not.

An error is judged where it leaves an inbox, a claim or a transaction. The judgement holds also for what is
raised because of the error, or while it is handled (`__cause__`, else `__context__`), and for a group if each
of its errors has one. So

- the listener does not count a failure that a claim has recorded, a refusal, an inbox's own error, or a lost
  lease. `GiveUp` and the other errors that are answers themselves are judged by themselves, and what is
  raised from them as they are;
- the listener counts a failure of a body on the exactly-once path, and of a claim that does not answer for
  the message: it has no record, or it is for a part of a message that the exactly-once path has taken;
- an error that was only raised while a final answer was handled does not give the message up: the listener
  judges it;
- several claims answer together, also one inside another: while one of them, or a transaction beside them,
  may still succeed or is still open, the message is delivered again. If no record counts that, the listener
  does. It waits for what stores answer to claims that have begun, at most a second.

A judgement is kept on the error, but only for its message: several messages may get the same object, as from
a future for which they all waited. In doubt both count, and the message is delivered again: in a thread
without the message's context, and after a transaction that has taken a message and ended.
"""

import threading
import time
from collections.abc import Iterable, Iterator
from contextvars import ContextVar

from inbox._refusing.refusal import RefusalNote
from inbox_outbox_base.errors.blame import is_failure, is_own
from inbox_outbox_base.errors.groups import walk
from inbox_outbox_base.errors.inbox import NotTaken, TransactionEnded
from inbox_outbox_base.words.incoming import Verdict

from .judgements import (
    PASSING,
    Part,
    Recorded,
    answers_to,
    because_of,
    judge,
    judged,
    parts_of,
    reasons_of,
    together,
)

_ASKING = 1.0
"""Seconds to wait for the stores of claims when the handler has already raised an error."""


class Recordings:
    """What inboxes have answered and refused while one message of a listener was handled."""

    def __init__(self) -> None:
        self.is_heard = True
        """Whether claims that begin now answer for the message."""
        self._lock = threading.Lock()  # threads of the handler may end their claims at the same time
        self._open: list[ClaimedPart] = []
        self._answer: Recorded | None = None
        self._may_succeed = False
        """Whether a claim has failed, or was refused, that does not answer for the message."""
        self._unfinished: set[Part] = set()
        """Taken in a transaction that has not committed, and not for a claim that answers."""
        self._ended: set[Part] = set()
        self.has_lost_rest = False
        """Whether a message was found taken whose body had ended its transaction."""
        self._refused: list[RefusalNote] | None = []
        self._failed: dict[Part, RefusalNote] = {}
        self._unkeyed: tuple[BaseException, RefusalNote] | None = None

    def begin(self) -> None:
        """Call this in the context in which the message is going to be handled."""
        _current.set(self)

    def end(self) -> None:
        """The message is handled: claims of tasks that it has left behind are not heard."""
        self.is_heard = False

    def opened(self, part: "ClaimedPart") -> None:
        """A claim has begun."""
        with self._lock:
            self._open.append(part)

    def closed(self, part: "ClaimedPart", error: BaseException | None, answer: Recorded | None) -> None:
        """A claim has ended; see `ClaimedPart.end`."""
        heard = answer if part.answers else None
        with self._lock:
            self._open.remove(part)
            if heard is not None:
                self._answer = heard if self._answer is None else together([self._answer, heard])
                for inner in () if error is None else parts_of(error, self):
                    self._unfinished.discard(inner)
                    self._failed.pop(inner, None)
            elif error is not None or answer is not None:
                self._may_succeed = True
            for each in () if error is None else walk(error):
                judge(each, self, heard, is_claims=True)

    def taken(self, part: Part) -> None:
        """A transaction of the exactly-once path has taken a message."""
        with self._lock:
            self._unfinished.add(part)

    @property
    def has_ended(self) -> bool:
        """Whether a body has ended its transaction itself, and perhaps committed its first half."""
        return bool(self._ended)

    def repeated(self, part: Part) -> None:
        """A transaction of the exactly-once path has found a message taken before."""
        with self._lock:
            self.has_lost_rest = self.has_lost_rest or part in self._ended

    def committed(self, part: Part) -> None:
        """This transaction has committed."""
        with self._lock:
            self._unfinished.discard(part)
            self._failed.pop(part, None)

    def left(self, error: BaseException, part: Part) -> None:
        """An error has left a transaction of the exactly-once path."""
        with self._lock:
            for each in walk(error):
                before = judged(each, self)
                if isinstance(each, NotTaken):
                    if each.verdict in PASSING:
                        self._unfinished.add(part)
                elif before is None or before.answer is None:
                    if isinstance(each, TransactionEnded) and not is_own(each):
                        self._ended.add(part)
                    answer = None if is_failure(each) else Recorded(Verdict.NEW, None)
                    judge(each, self, answer, is_claims=False, part=part)

    def refuse(self, note: RefusalNote) -> bool:
        """Keep what an inbox has refused until the listener decides; False if it has."""
        with self._lock:
            if self._refused is None:
                return False
            self._refused.append(note)
            return True

    def fail(self, note: RefusalNote) -> None:
        """An error leaves a transaction in which the message of this note was taken."""
        with self._lock:
            self._failed[note.consumer, note.key] = note

    def fail_unkeyed(self, error: BaseException, note: RefusalNote) -> None:
        """An error leaves a handler whose inbox has no key of the message yet, unless another one has."""
        with self._lock:
            if judged(error, self) is None:
                self._unkeyed = error, note

    def failed_at(self, error: BaseException) -> RefusalNote | None:
        """The message in the inbox that this error has left, unless that inbox has a record of it; else as it
        is without a key."""
        with self._lock:
            notes = (self._failed.get(part) for part in parts_of(error, self))
            found = next((note for note in notes if note is not None), None)
            if found is None and self._unkeyed is not None:
                first, note = self._unkeyed
                reasons = [*reasons_of(error)]
                judgements = (judged(each, self) for each in reasons)
                is_recorded = any(each is not None and each.is_claims for each in judgements)
                if any(each is first for each in reasons) and not is_recorded:
                    return note
            return found

    def take_refused(self) -> list[RefusalNote]:
        """What was refused; the listener has decided."""
        with self._lock:
            refused, self._refused = self._refused or [], None
            return refused

    def answer(self, error: BaseException) -> Recorded | None:
        """The answer of the message's inboxes to the error that its handler has raised, refusals included;
        None if the listener has to judge it."""
        with self._lock:
            if (answers := answers_to(error, self)) is None:
                return None
            answer = together(answers if self._answer is None else [*answers, self._answer])
            if answer.verdict in PASSING:
                return answer
            if any(each.answers and each.is_asked for each in self._open):
                return Recorded(Verdict.NEW, None)
            return None if self._open or self._may_succeed or self._unfinished else answer

    def asking(self) -> Iterator[float]:
        """Seconds to sleep, again and again, while stores have not yet answered claims that are open: what
        they say belongs to the answer. A claim that is refused would otherwise seem to be open in every
        delivery, and the message would be delivered without end."""
        until = time.monotonic() + _ASKING
        while time.monotonic() < until:
            with self._lock:
                if all(each.is_asked for each in self._open):
                    return
            yield 0.01

    def has_claimed(self, error: BaseException) -> bool:
        """Whether the error, or one that it was raised from, has left a claim."""
        judgements = [judged(each, self) for each in because_of(error)]
        return any(each is not None and each.is_claims for each in judgements)


class ClaimedPart:
    """What a claim tells the listener, from before its store is asked until its end is recorded."""

    __slots__ = ("_recordings", "answers", "is_asked")

    def __init__(self) -> None:
        self._recordings = current()
        self.answers = self._recordings is not None and self._recordings.is_heard
        """Whether the claim answers for the message."""
        self.is_asked = False
        """Whether the store has answered."""
        if self._recordings is not None:
            self._recordings.opened(self)

    def end(self, error: BaseException | None, answer: Recorded | None) -> None:
        """The claim has ended.

        Args:
            error: what leaves its block; None if nothing does, or if there was no block.
            answer: what it has recorded because of the error, or why it may succeed later; None if it has
                succeeded, or if nobody has counted the error.
        """
        if self._recordings is not None:
            self._recordings.closed(self, error, answer)


_current: ContextVar[Recordings | None] = ContextVar("inbox_recordings", default=None)


def current() -> Recordings | None:
    """Those of the listener's message that this context handles."""
    return _current.get()


def takes_messages(consumer: str, keys: Iterable[str]) -> None:
    """The exactly-once path has taken messages: claims that begin from now on are for parts of it."""
    if (recordings := _current.get()) is not None:
        recordings.is_heard = False
        for key in keys:
            recordings.committed((consumer, key))  # or rolled back by the handler itself


def begins_transaction(part: Part) -> None:
    """A transaction of the exactly-once path has taken a message."""
    if (recordings := current()) is not None:
        recordings.taken(part)


def repeats_transaction(part: Part) -> None:
    """A transaction of the exactly-once path has found this message taken before."""
    if (recordings := current()) is not None:
        recordings.repeated(part)


def ends_transaction(part: Part) -> None:
    """It has committed."""
    if (recordings := current()) is not None:
        recordings.committed(part)


def leaves_transaction(error: BaseException, part: Part) -> None:
    """This error leaves it, or its beginning."""
    if (recordings := current()) is not None:
        recordings.left(error, part)
