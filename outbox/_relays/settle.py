"""What is written about messages after they were sent, in the transaction that renews the lease."""

import logging
from typing import Any

from sqlalchemy import Connection

from .. import _statements
from .._databases import Database
from .._letter import Letter
from .._outcomes import Outcome, Refused, Unavailable
from .report import Answer, Report
from .settings import Settings

_log = logging.getLogger("outbox.relay")

LONGEST_ERROR = 4_000
"""Characters of a reason that are kept."""


class Settlement:
    """Turns the answers of a batch into rows."""

    def __init__(self, settings: Settings, database: Database) -> None:
        self._settings = settings
        self._database = database

    def write(self, connection: Connection, report: Report) -> None:
        """Forget what has left, put away what never will, and note of the rest when it is sent again."""
        tables = self._settings.tables
        if report.accepted:
            keep = self._settings.keep_sent is not None
            self._database.forget(connection, tables, report.accepted, keep_sent=keep)
        waits = []
        for answer in report.others:
            if isinstance(answer.outcome, Refused):
                self._put_away(connection, answer.letter, answer.attempts, "refused", reason(answer.outcome))
            else:
                waits.append(self._wait(answer))
        for letter in report.exhausted:
            error = f"no answer after {letter.unanswered} sends"
            self._put_away(connection, letter, letter.envelope.attempt - 1, "unknown", error)
        if waits:
            connection.execute(_statements.wait(tables), waits)

    def delay(self, answer: Answer) -> float:
        """Seconds until a message is sent again."""
        asked = answer.retry_after
        return self._settings.backoff.delay(answer.attempts) if asked is None else asked

    def _wait(self, answer: Answer) -> dict[str, Any]:
        unknown = not isinstance(answer.outcome, Unavailable)
        return {
            "bucket_": answer.letter.bucket,
            "it": answer.letter.sequence,
            "attempts_": answer.attempts,
            "unanswered_": answer.letter.unanswered + unknown,
            "state_": "unknown" if unknown or answer.letter.state == "unknown" else "pending",
            "error_": reason(answer.outcome),
            "delay_": self.delay(answer),
        }

    def _put_away(
        self, connection: Connection, letter: Letter, attempts: int, outcome: str, error: str
    ) -> None:
        this = {"bucket_": letter.bucket, "it": letter.sequence}
        tables = self._settings.tables
        if self._settings.holds and letter.key is not None:
            given = {"attempts_": attempts, "error_": error}
            connection.execute(_statements.hold(tables), this | given)
        else:
            given = {"attempts": attempts, "outcome": outcome, "error": error}
            connection.execute(_statements.bury(tables), this | given)
            self._database.forget(connection, tables, [letter], keep_sent=False)
        _log.error(
            "message %s to %r is dead after %d attempts: %s",
            letter.envelope.id,
            letter.envelope.topic,
            attempts,
            error,
        )


def reason(outcome: Outcome) -> str:
    """Why, fit for a column."""
    text = getattr(outcome, "reason", "") or type(outcome).__name__
    return str(text)[:LONGEST_ERROR].replace("\0", "").encode(errors="replace").decode()
