"""Processes that are killed in the middle of a bulk decision."""

import os
import signal
from itertools import count
from typing import Any

import pytest
from sqlalchemy import create_engine, event

import inbox
import outbox

MESSAGES, TOGETHER, COMMITS = 40, 5, 3
"""How many messages there are, and how many a transaction changes; at which COMMIT the process dies."""


def retry_letters(_: Any, url: Any, point: str) -> None:
    """Retry all dead letters of the outbox, and die at one of the COMMITs."""
    engine = create_engine(url)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("outbox._operating.bulk._WRITTEN", TOGETHER)
        _die_at_commit(engine, point)
        outbox.retry_all(engine, "dead", by="ann")


def discard_messages(_: Any, url: Any, point: str) -> None:
    """Discard all failed messages of status-table mode, and die at one of the COMMITs."""
    engine = create_engine(url)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("inbox._operating.bulk._TOGETHER", TOGETHER)
        _die_at_commit(engine, point)
        inbox.discard_all(inbox.SqlStore(engine), "failed", by="ann")


def _die_at_commit(engine: Any, point: str) -> None:
    """Die before or after the third COMMIT of a transaction that has stored a decision."""
    commits, stored = count(1), list[bool]()

    def look(_: Any, __: Any, statement: str, *others: Any) -> None:
        if statement.startswith("INSERT INTO ops_decision"):
            stored.append(True)

    def commit(_: Any) -> None:
        if not stored:
            return
        stored.clear()
        if next(commits) == COMMITS:
            if point == "before":
                _die()
            event.listen(engine, "checkin", _die)  # once the COMMIT has been answered

    event.listen(engine, "after_cursor_execute", look)
    event.listen(engine, "commit", commit)


def _die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)
