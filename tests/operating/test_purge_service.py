"""A service that purges again and again, in one process at a time."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, Row, event, select, update

from inbox import PurgeService
from inbox.errors import InvalidOption, TablesMissing
from inbox.schema import tables
from tests.operating.test_purge import WEEK, fill, left
from tests.support.database import Database
from tests.support.on_servers import on
from tests.support.processes import wait_until

PURGE = tables().purge
HOUR = timedelta(hours=1)


@contextmanager
def running(service: PurgeService) -> Iterator[PurgeService]:
    service.check()
    thread = threading.Thread(target=service.run)
    thread.start()
    try:
        yield service
    finally:
        service.stop()
        thread.join()


def turn(engine: Engine) -> Row[Any]:
    """The row that stands for services."""
    with engine.connect() as connection:
        return connection.execute(select(PURGE).where(PURGE.c.consumer == "")).one()


def set_turn(engine: Engine, **values: Any) -> None:
    with engine.begin() as connection:
        connection.execute(update(PURGE).where(PURGE.c.consumer == "").values(values))


@pytest.mark.mysql
def test_one_at_a_time(engine: Engine) -> None:
    """A service purges at once, and then so often; while another one purges, or soon after it has, it does
    not. If that one has died, it goes on."""
    fill(engine, [2 * WEEK, WEEK / 7])
    with running(PurgeService(engine, HOUR)) as first:
        wait_until(lambda: turn(engine).finished)
    assert (first.purges, first.rows, first.failures, len(left(engine))) == (1, 1, 0, 1)
    assert turn(engine).rows == 1
    assert turn(engine).ended_at is not None
    with running(PurgeService(engine, HOUR)) as second:
        assert not second._wake.wait(0.2)
    assert (second.purges, second.failures) == (0, 0)
    now = datetime.now(UTC)
    set_turn(engine, begun_at=now - 2 * HOUR, alive_until=now + HOUR)
    with running(PurgeService(engine, HOUR)) as third:
        assert not third._wake.wait(0.2)
    assert third.purges == 0
    set_turn(engine, begun_at=now, alive_until=now - HOUR)
    with running(PurgeService(engine, HOUR)) as fourth:
        wait_until(lambda: fourth.purges)
    with running(PurgeService(engine, 0.05)) as fifth:
        wait_until(lambda: fifth.purges == 2)


@on("sqlite", "postgresql")
def test_stopped_after_a_batch(engine: Engine) -> None:
    """It ends after the batch that is running, and the next service goes on at once."""
    fill(engine, [2 * WEEK] * 1_200)
    stopping = PurgeService(engine, HOUR)

    def stop(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if "DELETE FROM inbox_message" in statement:
            stopping.stop()

    stopping.check()
    event.listen(engine, "before_cursor_execute", stop)
    stopping.run()
    event.remove(engine, "before_cursor_execute", stop)
    assert (stopping.rows, stopping.purges, len(left(engine))) == (500, 0, 700)
    with running(PurgeService(engine, HOUR)) as service:
        wait_until(lambda: service.purges)
    assert left(engine) == []


@on("postgresql", "mariadb", "mysql")
def test_begun_together(engine: Engine) -> None:
    """Several that begin together on a new database make one row, and none of them fails. (On SQLite, one
    waits for the other.)"""
    both, met = threading.Barrier(2), threading.local()

    def meet(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("INSERT INTO inbox_purge") and not hasattr(met, "once"):
            met.once = True
            both.wait(10)

    event.listen(engine, "before_cursor_execute", meet)
    services = [PurgeService(engine, HOUR) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        for checked in [pool.submit(each.check) for each in services]:
            checked.result()
    event.remove(engine, "before_cursor_execute", meet)
    with running(services[0]), running(services[1]):
        wait_until(lambda: services[0].purges + services[1].purges)
    assert [each.failures for each in services] == [0, 0]


@on("sqlite")
def test_an_error(engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A purge that fails is logged and counted, and the next one comes at its time."""
    fill(engine, [2 * WEEK])
    monkeypatch.setattr("inbox._operating.purging.SKEW", -WEEK)
    with running(PurgeService(engine, 0.2)) as service:
        wait_until(lambda: service.failures)
        assert not turn(engine).finished
        monkeypatch.undo()
        wait_until(lambda: service.purges)
    assert "purge failed; the next one comes at its time: engine: the database's clock says" in caplog.text
    assert left(engine) == []


@on("sqlite")
def test_what_cannot_run(database: Database) -> None:
    """It is refused before it begins."""
    engine = database.engine()
    with pytest.raises(InvalidOption, match="every=0: expected more than 0"):
        PurgeService(engine, 0)
    with pytest.raises(TablesMissing, match="inbox_message"):
        PurgeService(engine, HOUR).check()
