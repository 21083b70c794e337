"""What work writes to the server's log, and how many transaction ids it uses up."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy import Engine, text

from ._lab import run_alone
from ._measure import Operation

Work = Callable[[], int]
"""Returns its number of messages."""
_NOW = text(
    "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0'), "
    "CAST(CAST(pg_snapshot_xmax(pg_current_snapshot()) AS text) AS bigint)"
)
_IS_FULL = text("SELECT full_page_writes FROM pg_control_checkpoint()")
_SETTINGS = "full_page_writes", "autovacuum"


@dataclass(frozen=True, slots=True)
class Written:
    """What work has written."""

    messages: int
    log: float
    """Bytes for one message."""
    transactions: float
    """Transaction ids for one message."""


def repeat(operation: Operation, messages: int) -> Work:
    """The operation, until it has done so many messages."""

    def work() -> int:
        done = 0
        while done < messages:
            done += operation(0)
        return done

    return work


def written(engine: Engine, work: Work) -> Written:
    """Do the work, and say what it has written for each of its messages."""
    log, transactions = _now(engine)
    messages = work()
    later = _now(engine)
    return Written(messages, (later[0] - log) / messages, (later[1] - transactions) / messages)


def _now(engine: Engine) -> tuple[float, float]:
    with engine.connect() as connection:
        log, transactions = connection.execute(_NOW).one()
    return float(log), float(transactions)


@contextmanager
def alone(engine: Engine, *, full_pages: bool) -> Iterator[None]:
    """Nothing but the work writes to the log: no autovacuum. With full pages, the first change of a page
    after a checkpoint writes all of it, which is PostgreSQL's default; without, changes write only
    themselves, and the libraries warn that a crash can lose messages."""
    run_alone(
        engine,
        "ALTER SYSTEM SET autovacuum = off",
        f"ALTER SYSTEM SET full_page_writes = {'on' if full_pages else 'off'}",
        "SELECT pg_reload_conf()",
    )
    try:
        while not _has(engine, full_pages):
            time.sleep(0.05)
        yield
    finally:
        run_alone(engine, *(f"ALTER SYSTEM RESET {name}" for name in _SETTINGS), "SELECT pg_reload_conf()")


def _has(engine: Engine, full_pages: bool) -> bool:
    """Whether the checkpointer, which has the last word on it, has read the setting."""
    run_alone(engine, "CHECKPOINT")
    with engine.connect() as connection:
        return connection.execute(_IS_FULL).scalar_one() is full_pages
