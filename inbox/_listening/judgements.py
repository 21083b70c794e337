"""What inboxes have answered because of an error: kept on it, and followed to what is raised from it."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from inbox_outbox_base.errors.blame import is_excused
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

PASSING = (Verdict.NEW, Verdict.IN_FLIGHT)
"""The verdicts after which another delivery may succeed."""

_ANSWERS = (GiveUp, InvalidOption, InvalidResult, TransactionEnded)
"""Errors that decide about the message themselves, and so does what is raised from them."""

_KEPT = "_inbox_judgements"
"""An attribute of errors. The errors themselves are not kept: their frames may hold connections and files."""


Part = tuple[str, str]
"""The consumer and the key of a message on the exactly-once path."""


class Recorded(NamedTuple):
    """An inbox's answer to a message whose handler raised an error."""

    verdict: Verdict
    """`NEW` if it failed, and another attempt follows."""
    retry_after: float | None
    """Seconds after which to deliver the message again; None if it is given up, or if nobody knows."""


class ErrorJudgement(NamedTuple):
    """What an inbox has said about an error that left it."""

    answer: Recorded | None
    """None if the listener has to count the error."""
    is_claims: bool
    """Whether the error has left a claim."""
    part: "Part | None" = None
    """The message, if the error has left a transaction in which it was taken."""


class _JudgementsOfError(WeakKeyDictionary[object, ErrorJudgement]):
    """By the message."""

    def __reduce__(self) -> tuple[Any, ...]:
        return WeakKeyDictionary, ()  # an error may be pickled, to tell another process about it


def judge(
    error: BaseException,
    message: object,
    answer: Recorded | None,
    *,
    is_claims: bool,
    part: Part | None = None,
) -> None:
    """Keep a judgement on this error, as long as the message lives. Two answers become one; otherwise the
    last judgement counts."""
    before = judged(error, message)
    if before is not None and before.answer is not None and answer is not None:
        answer = together([before.answer, answer])
    kept = vars(error).setdefault(_KEPT, _JudgementsOfError())  # a class may forbid setattr
    part = before.part if part is None and before is not None else part
    kept[message] = ErrorJudgement(answer, is_claims or (before is not None and before.is_claims), part)


def judged(error: BaseException, message: object) -> ErrorJudgement | None:
    """The judgement on this error itself."""
    judgements: _JudgementsOfError | None = vars(error).get(_KEPT)
    return None if judgements is None else judgements.get(message)


def together(answers: Iterable[Recorded]) -> Recorded:
    """The one that loses least, and the longest delay."""
    verdicts, delays = zip(*answers, strict=True)
    known = [each for each in delays if each is not None]
    return Recorded(min(verdicts, key=_LOSES_LEAST.index), max(known, default=None))


def answers_to(top: BaseException, message: object) -> list[Recorded] | None:
    """The answers because of which this error was raised; None if there is an error that nobody has judged,
    or that the listener counts. Without recursion: errors of tasks in tasks can be nested deeply."""
    known: dict[int, list[Recorded] | None] = {}
    begun: set[int] = set()
    stack = [top]
    while stack:
        error = stack[-1]
        # An error may be its own cause: what has begun further down the stack is not looked at again.
        reasons = [] if id(error) in begun else [each for each in _reasons(error) if id(each) not in begun]
        begun.add(id(error))
        stack.extend(reasons)
        if not reasons:
            stack.pop()
            if id(error) not in known:
                known[id(error)] = _answers_to(error, message, known)
    return known[id(top)]


def parts_of(top: BaseException, message: object) -> Iterator[Part]:
    """The transactions that have led to this error."""
    for each in reasons_of(top):
        if (judgement := judged(each, message)) is not None and judgement.part is not None:
            yield judgement.part


def reasons_of(top: BaseException) -> Iterator[BaseException]:
    """The error, and all because of which, or while they were handled, it was raised."""
    return _closure(top, _reasons)


def because_of(top: BaseException) -> Iterator[BaseException]:
    """The error, and those that it is made of or was raised from, up to those that decide about the
    message."""
    return _closure(top, _causes)


def _closure(
    top: BaseException, leads: Callable[[BaseException], list[BaseException]]
) -> Iterator[BaseException]:
    seen: set[int] = set()
    stack = [top]
    while stack:
        error = stack.pop()
        if id(error) not in seen:
            seen.add(id(error))
            yield error
            stack.extend(leads(error))


def origins(top: BaseException) -> list[BaseException]:
    """Of these, the errors at the ends; the error itself, if there is none, because it is its own cause."""
    return [each for each in because_of(top) if not _causes(each)] or [top]


def _causes(error: BaseException) -> list[BaseException]:
    if isinstance(error, _ANSWERS):
        return []
    if _is_because(error):
        return _reasons(error)
    return list(error.exceptions) if isinstance(error, BaseExceptionGroup) else []


def _reasons(error: BaseException) -> list[BaseException]:
    """The errors that this one is made of, was raised from, or was raised while they were handled."""
    before = error.__context__ if error.__cause__ is None else error.__cause__
    inside = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    return [*inside, *([] if before is None else [before])]


def _is_because(error: BaseException) -> bool:
    """Whether the error was raised from the one before it. Task groups raise `from None` wherever they are:
    that says nothing."""
    is_hidden = error.__suppress_context__ and not isinstance(error, BaseExceptionGroup)
    return error.__cause__ is not None or is_hidden


def _answers_to(
    error: BaseException, message: object, known: dict[int, list[Recorded] | None]
) -> list[Recorded] | None:
    """The same for one error, if its reasons are known."""
    judgement = judged(error, message)
    answers = [] if judgement is None or judgement.answer is None else [judgement.answer]
    if isinstance(error, NotTaken):
        answers.append(Recorded(error.verdict, error.retry_after))
    if answers:
        return answers
    if isinstance(error, BaseExceptionGroup):
        parts = [known.get(id(each)) for each in error.exceptions]
        if all(parts):
            return list({answer for each in parts for answer in each or ()})
    elif judgement is None and is_excused(error):
        return [Recorded(Verdict.NEW, None)]
    if judgement is not None or isinstance(error, _ANSWERS):
        return None
    if _is_because(error):
        return known.get(id(error.__cause__ or error.__context__))
    # Raised while another one was handled: perhaps about another thing, so it gives nothing up.
    handled = known.get(id(error.__context__)) or ()
    return [each for each in handled if each.verdict in PASSING] or None
