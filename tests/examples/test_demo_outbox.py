"""Act three of the demo: with the outbox, exactly the committed departures are announced, and the demo
reports an error if they are not."""

import sys
from pathlib import Path

import pytest
from sqlalchemy import Engine, inspect, select

from examples.demo import third_act, totals
from examples.demo.flights import Departure
from examples.demo.stage import KILLS, RELAY_KILLS
from examples.demo.third_report import Announced
from inbox.schema import tables
from outbox import Outbox
from outbox.schema import tables as outbox_tables
from tests.examples.test_demo import interrupted, table
from tests.support.database import Database
from tests.support.program import ROOT, command, run

MESSAGES = 600
NAIVE = """
import sys

from examples.demo import __main__, senders, third_act

third_act.PROGRAMS["outbox"] = senders.commit_then_send
if __name__ == "__main__":
    sys.exit(__main__.main(sys.argv[1:]))
"""


@pytest.mark.long
def test_act_three_is_exact(postgres: Database) -> None:
    """Three programs are killed at random. One does not announce everything that it committed, and one
    announces what was rolled back. The one with an outbox does neither, although its relays are killed,
    too."""
    done = run(command("examples.demo", "--act", "3", "--messages", str(MESSAGES), url=postgres.url))
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert "With the outbox every departure counts exactly once." in done.stdout
    rows = table(done.stdout)
    expected, commit_send, send_commit, outbox = rows["committed, never announced"]
    assert (expected, send_commit, outbox) == (0, 0, 0)
    assert commit_send > 0
    expected, commit_send, send_commit, outbox = rows["announced, never committed"]
    assert (expected, commit_send, outbox) == (0, 0, 0)
    assert send_commit > 0
    assert rows["wrong airlines"][3] == rows["wrong airports"][3] == 0
    assert min(rows["wrong airlines"][1:3]) > 0
    # The last requests may be answered before their program can be killed.
    assert all(0 < each <= KILLS for each in rows["programs killed"])
    assert 0 < rows["relays killed"][0] <= RELAY_KILLS
    not_repeated = KILLS * third_act.TOGETHER
    assert all(MESSAGES - not_repeated <= each < MESSAGES for each in rows["departures committed"])


@pytest.mark.long
def test_act_three_leaves_nothing_behind(postgres: Database) -> None:
    """The act deletes its tables, its inbox rows and its messages afterwards, but not the dead letters of
    others."""
    engine = postgres.engine()
    dead, message, sent = outbox_tables().dead, tables().message, outbox_tables().message
    letter = {"id": "1", "bucket": 1, "topic": "other", "payload": b"", "content_type": "text/plain"}
    with engine.begin() as connection:
        connection.execute(dead.insert().values(**letter, attempts=1, outcome="refused", error="no"))
    done = run(command("examples.demo", "--act", "3", "--messages", "100", url=postgres.url))
    assert done.returncode == 0, done.stdout + done.stderr
    assert not [name for name in inspect(engine).get_table_names() if name.startswith("demo_")]
    with engine.connect() as connection:
        assert connection.execute(select(dead.c.topic)).scalars().all() == ["other"]
        assert not connection.execute(select(message)).all()
        assert not connection.execute(select(sent)).all()


@pytest.mark.long
def test_act_three_can_fail(postgres: Database, tmp_path: Path) -> None:
    """If the outbox is replaced by a program without one, the exit code is 1."""
    script = tmp_path / "naive.py"
    script.write_text(f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{NAIVE}")
    url = postgres.url.render_as_string(hide_password=False)
    done = run([sys.executable, str(script), "--act", "3", "--messages", "1000", "--url", url])
    assert done.returncode == 1, done.stdout + done.stderr
    assert "WRONG: with the outbox some totals are off." in done.stdout
    assert table(done.stdout)["committed, never announced"][3] > 0


@pytest.mark.long
@pytest.mark.parametrize("messages", ["1", "25"])
def test_act_three_brings_its_own_database(messages: str) -> None:
    """Without --url the act runs on the embedded PostgreSQL, with any number of messages."""
    done = run(command("examples.demo", "--act", "3", "--messages", messages))
    assert (done.returncode, done.stderr) == (0, ""), done.stdout


@pytest.mark.long
def test_act_three_takes_nobody_elses_messages(postgres: Database) -> None:
    """The act does not run if the outbox contains other messages: its relays would send them, too."""
    engine = postgres.engine()
    with engine.begin() as connection:
        Outbox(wake=False).publish(connection, "somebody.elses", "hello")
    done = run(command("examples.demo", "--act", "3", "--messages", "100", url=postgres.url))
    assert done.returncode == 2
    assert "The demo could not run: the outbox contains other messages" in done.stdout
    with engine.connect() as connection:
        assert len(connection.execute(select(outbox_tables().message)).all()) == 1


@pytest.mark.long
def test_act_three_can_be_interrupted(postgres: Database) -> None:
    """Ctrl-C ends the demo and all its processes, removes its tables, and prints no traceback."""
    engine = postgres.engine(isolation_level="AUTOCOMMIT")
    interrupted(lambda: has_rows(engine), "examples.demo", "--act", "3", url=postgres.url)
    assert not inspect(engine).has_table("demo_departure")


def has_rows(engine: Engine) -> bool:
    """Whether a departure has been written."""
    with engine.connect() as connection:
        there = inspect(connection).has_table("demo_departure")
        return there and connection.exec_driver_sql("SELECT 1 FROM demo_departure").first() is not None


def test_any_difference_is_seen() -> None:
    """Lost messages, messages announced but never committed, and wrong totals are each noticed."""
    departures = [Departure("2013-01-01", "UA", 1, "JFK", 5), Departure("2013-01-01", "AA", 2, "EWR", 7)]
    right = totals.of(departures)

    def found(counted: totals.Totals = right, lost: int = 0, ghosts: int = 0) -> Announced:
        return Announced(right, counted, lost, ghosts, again=3, killed=1, relays_killed=1, seconds=1)

    assert found().is_exact
    assert not found(lost=1).is_exact
    assert not found(ghosts=1).is_exact
    assert not found(counted=totals.of(departures[:1])).is_exact
