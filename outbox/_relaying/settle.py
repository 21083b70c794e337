"""Writes the outcomes of a batch, in the transaction that renews the lease."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from inbox_outbox_base.databases import relaying_statements
from inbox_outbox_base.databases.letter import Letter
from inbox_outbox_base.databases.relaying import Relaying
from inbox_outbox_base.words.outgoing import Outcome, Refused
from outbox._publishers.outcomes import LONGEST_ERROR, as_outcome

from .refusals import write_apart
from .report import Death, Report, SentMessage
from .settings import RelaySettings


@dataclass(frozen=True, slots=True)
class _End:
    """How a message became a dead letter."""

    attempts: int
    unanswered: int
    outcome: str
    error: str


class Settlement:
    """Writes a batch's outcomes to the tables."""

    def __init__(self, settings: RelaySettings, database: Relaying) -> None:
        self._settings = settings
        self._database = database
        self._tables = database.tables

    def write(self, connection: Connection, report: Report) -> None:
        """Delete accepted messages, put away dead ones, and record when the others are retried."""
        dead = report.dead = []  # emptied, because a retried transaction fills it again
        if report.accepted:
            keep, own = self._settings.keep_sent, list[Letter]()
            if keep is None:
                own = [letter for letter in report.accepted if letter.own_id is not None]
            # After the lease expired, a message may have been dropped, and another one may have its id now.
            ids = self._database.left(connection, own) if own else []
            self._database.forget(connection, report.accepted, keep=keep)
            self._database.free_ids(connection, ids)
        waits: list[tuple[SentMessage, float]] = []
        for answer in report.others:
            if isinstance(answer.outcome, Refused):
                end = _End(answer.attempts, answer.unanswered, "refused", reason(answer.outcome))
                dead.append(self._put_away(connection, answer.letter, end))
            elif answer.is_last:
                dead.append(self._put_away(connection, answer.letter, _given_up(answer)))
            elif answer.is_unknown and answer.unanswered >= self._settings.max_attempts:
                end = _no_answer(answer.attempts, answer.unanswered)
                dead.append(self._put_away(connection, answer.letter, end))
            else:
                waits.append((answer, self._delay(answer)))
        dead += [self._put_away(connection, each, _exhausted(each)) for each in report.exhausted]
        if waits:
            connection.execute(relaying_statements.wait(self._tables), [_wait(*each) for each in waits])
        report.waits = [(answer.letter, delay) for answer, delay in waits]

    def write_apart(self, connection: Connection, report: Report) -> None:
        """The same for the outcomes that the database takes; the others are moved to `report.unwritten`."""
        if report.unwritten is not None:  # by a transaction that failed
            report.add(report.unwritten)
        written, refused = Report(), Report()
        report.unwritten, report.refusal = refused, None

        tried = Report()

        def write(parts: Sequence[Report]) -> None:
            nonlocal tried
            tried = _together(parts)
            self.write(connection, tried)

        for parts, error in write_apart(connection, _each(report), write):
            if error is None:
                written.add(tried)
                written.dead += tried.dead
                written.waits += tried.waits
            else:
                refused.add(_together(parts))
                report.refusal = error
        report.accepted, report.others, report.exhausted = written.accepted, written.others, written.exhausted
        report.dead, report.waits = written.dead, written.waits

    def _delay(self, answer: SentMessage) -> float:
        asked = answer.retry_after
        return self._settings.backoff.delay(answer.attempts) if asked is None else asked

    def _put_away(self, connection: Connection, letter: Letter, end: _End) -> Death:
        this = _this(letter)
        if self._settings.holds and letter.key is not None:
            given = {"attempts_": end.attempts, "unanswered_": end.unanswered, "error_": end.error}
            connection.execute(relaying_statements.hold(self._tables), this | given)
        else:
            given = {"attempts": end.attempts, "outcome": end.outcome, "error": end.error}
            connection.execute(relaying_statements.bury(self._tables), this | given)
            self._database.forget(connection, [letter], keep=None)
        return Death(letter, end.attempts, end.error)


def _each(report: Report) -> list[Report]:
    return [
        *(Report(accepted=[letter]) for letter in report.accepted),
        *(Report(others=[answer]) for answer in report.others),
        *(Report(exhausted=[letter]) for letter in report.exhausted),
    ]


def _together(parts: Iterable[Report]) -> Report:
    whole = Report()
    for part in parts:
        whole.add(part)
    return whole


def _this(letter: Letter) -> dict[str, Any]:
    return {"bucket_": letter.bucket, "sequence_": letter.sequence, "id_": letter.id}


def _exhausted(letter: Letter) -> _End:
    if letter.damage is not None:
        return _End(letter.attempts, letter.unanswered, "refused", reason(as_outcome(Refused(letter.damage))))
    return _no_answer(letter.attempts, letter.unanswered)


def _no_answer(attempts: int, unanswered: int) -> _End:
    return _End(attempts, unanswered, "unknown", f"no answer after {unanswered} sends")


def _given_up(answer: SentMessage) -> _End:
    """A dead letter that no broker refused; if one of its sends had no answer, it may have arrived."""
    outcome = "unknown" if answer.unanswered else "refused"
    error = Refused(f"given up after {answer.letter.failing_for:.0f} s: {reason(answer.outcome)}")
    return _End(answer.attempts, answer.unanswered, outcome, reason(error))


def _wait(answer: SentMessage, delay: float) -> dict[str, Any]:
    is_unknown = answer.is_unknown or answer.letter.state == "unknown"
    return _this(answer.letter) | {
        "attempts_": answer.attempts,
        "unanswered_": answer.unanswered,
        "state_": "unknown" if is_unknown else "pending",
        "error_": reason(answer.outcome),
        "delay_": delay,
    }


def reason(outcome: Outcome) -> str:
    """The outcome's reason, cut for a column; its kind if it gives none."""
    text: str = getattr(outcome, "reason", "") or type(outcome).__name__
    return text[:LONGEST_ERROR]
