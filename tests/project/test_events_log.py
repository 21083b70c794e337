"""The log has one line for each event, at the right level."""

import logging
from typing import Any

import pytest
from sqlalchemy import delete

from inbox import Backoff, Event, EventKind, LogEvents, SqlStore, StatusInbox
from inbox.errors import LeaseLost
from inbox.schema import tables
from tests.support.database import Database

LOUD = {
    "failed": logging.WARNING,
    "lost": logging.WARNING,
    "abandoned": logging.WARNING,
    "fenced_write": logging.WARNING,
    "mismatch": logging.WARNING,
    "too_old": logging.WARNING,
    "unprotected": logging.WARNING,
    "commit_resolved": logging.WARNING,
    "refused": logging.WARNING,
    "unavailable": logging.WARNING,
    "unknown": logging.WARNING,
    "disconnected": logging.WARNING,
    "rejected": logging.WARNING,
    "load_failed": logging.WARNING,
    "dead": logging.ERROR,
    "halted": logging.ERROR,
    "step_unknown": logging.ERROR,
    "dead_letter": logging.ERROR,
}


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """The captured log, from DEBUG on."""
    caplog.set_level(logging.DEBUG, "inbox.messages")
    return caplog


def logging_inbox(database: Database, **options: Any) -> StatusInbox:
    store = SqlStore(database.engine())
    return StatusInbox("orders", store=store, on_event=LogEvents(), backoff=Backoff(0.01), **options)


def loud(log: pytest.LogCaptureFixture) -> list[str]:
    """The lines at WARNING or above, without the parts that differ from run to run."""
    lines = [record.getMessage() for record in log.records if record.levelno >= logging.WARNING]
    words = (line.split(" ") for line in lines)
    return [" ".join(word for word in line if not word.startswith(("token=", "seconds="))) for line in words]


def test_repeated_failure_of_one_key_is_visible(sqlite: Database, log: pytest.LogCaptureFixture) -> None:
    """Each failure is a line with key, attempt and error; the last line says that the message is dead."""
    inbox = logging_inbox(sqlite, max_attempts=3)
    for _ in range(3):
        with pytest.raises(OSError, match="no"), inbox.claim("order-1"):
            raise OSError("no")
    assert loud(log) == [
        "'orders' key='order-1': failed attempt=1 error='OSError: no'",
        "'orders' key='order-1': failed attempt=2 error='OSError: no'",
        "'orders' key='order-1': dead attempt=3 error='OSError: no'",
    ]
    assert log.records[-1].levelno == logging.ERROR


def test_a_halted_step_is_visible(sqlite: Database, log: pytest.LogCaptureFixture) -> None:
    """A line names the step whose outcome is unknown."""
    inbox = logging_inbox(sqlite)

    def charge() -> None:
        raise TimeoutError("no answer")

    with pytest.raises(TimeoutError), inbox.claim("order-1") as claim:
        claim.step("charge", charge, on_unknown="halt")
    unknown, halted = loud(log)
    assert (
        unknown
        == "'orders' key='order-1': step unknown step='charge' attempt=1 error='TimeoutError: no answer'"
    )
    assert halted.startswith("'orders' key='order-1': halted step='charge' attempt=1 error=")


def test_a_lost_claim_is_visible(sqlite: Database, log: pytest.LogCaptureFixture) -> None:
    """The rejected write, the loss of the claim and the end of the handler have a line each."""
    inbox = logging_inbox(sqlite, heartbeat=False)
    with pytest.raises(LeaseLost), inbox.claim("order-1"), sqlite.engine().begin() as connection:
        connection.execute(delete(tables().status))
    assert loud(log) == [
        "'orders' key='order-1': fenced write attempt=1 error='completing'",
        "'orders' key='order-1': lost attempt=1 error='the lease has expired, or the message was taken away'",
        "'orders' key='order-1': abandoned attempt=1",
    ]


def test_the_ordinary_is_quiet(sqlite: Database, log: pytest.LogCaptureFixture) -> None:
    """A message that succeeds, and its duplicate, cause no warning; its completion is the only line at
    INFO."""
    inbox = logging_inbox(sqlite)
    for _ in range(2):
        with inbox.claim("order-1") as claim:
            if claim.is_new:
                claim.step("lock-stock", lambda: None)
    assert loud(log) == []
    kinds = [(record.levelname, record.__dict__["inbox_event"].kind) for record in log.records]
    assert kinds == [
        ("DEBUG", EventKind.CLAIMED),
        ("DEBUG", EventKind.STEP_DONE),
        ("INFO", EventKind.COMPLETED),
        ("DEBUG", EventKind.DUPLICATE),
    ]


def test_every_kind_has_its_level(log: pytest.LogCaptureFixture) -> None:
    """Events that may need attention are WARNING, events that need an operator are ERROR, and the others are
    lower."""
    for kind in EventKind:
        LogEvents()(Event(kind=kind, consumer="orders", key="order-1"))
    levels = zip(EventKind, (record.levelno for record in log.records), strict=True)
    assert {kind.value: level for kind, level in levels if level >= logging.WARNING} == LOUD


def test_a_batch_is_one_line(log: pytest.LogCaptureFixture) -> None:
    """A relay's event is one line with the topic and the number of messages, or with the key and id of a
    single one; so is that of `accept_many`, and of a load with its run."""
    LogEvents()(Event(kind=EventKind.UNAVAILABLE, topic="orders", count=50, error="no route"))
    LogEvents()(Event(kind=EventKind.DEAD_LETTER, topic="orders", key="order-1", message_id="m-1"))
    assert loud(log) == [
        "topic='orders': unavailable count=50 error='no route'",
        "topic='orders' key='order-1' id='m-1': dead letter",
    ]
    log.clear()
    LogEvents()(Event(kind=EventKind.MISMATCH, consumer="billing", count=2))
    LogEvents()(Event(kind=EventKind.LOAD_FAILED, consumer="billing", run="r", batch=3, error="no"))
    assert loud(log) == [
        "'billing': mismatch count=2",
        "'billing' run='r' batch=3: load failed error='no'",
    ]


def test_an_event_is_one_line(log: pytest.LogCaptureFixture) -> None:
    """A key or error with line breaks cannot start or forge another line."""
    event = Event(kind=EventKind.FAILED, consumer="o", key="a\nERROR b", error="x\n\u2028y %s")
    LogEvents()(event)
    (record,) = log.records
    assert len(record.getMessage().splitlines()) == 1
    assert record.getMessage() == r"'o' key='a\nERROR b': failed error='x\n\u2028y %s'"


def test_a_logger_of_ones_own(caplog: pytest.LogCaptureFixture) -> None:
    """The lines go to the logger that was given."""
    LogEvents(logging.getLogger("mine"))(Event(kind=EventKind.DEAD, consumer="orders", key="order-1"))
    assert [record.name for record in caplog.records] == ["mine"]
