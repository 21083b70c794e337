"""The demo counts every departure once, on every database, and reports an error if it does not."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import URL, func, inspect, select

from examples.demo import flights, stream, totals
from examples.demo.__main__ import main
from examples.demo.flights import Departure
from inbox.schema import tables
from tests.support.database import Database
from tests.support.program import ROOT, command, run

MESSAGES = 4_000
BROKEN = """
import sys

from examples.demo import __main__, handler
from inbox import Verdict


class Forgetful:
    def accept_many(self, connection, keys):
        return [Verdict.NEW for _ in keys]


handler.INBOX = Forgetful()
if __name__ == "__main__":
    sys.exit(__main__.main(sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def departures() -> list[Departure]:
    """All departures of the data set."""
    return flights.read()


@pytest.mark.long(but_on="postgresql")
def test_the_demo_is_exact(database: Database, departures: list[Departure]) -> None:
    """With duplicates, concurrency and a killed worker, only the run with the inbox has the expected totals.
    Without --url the demo runs on the embedded PostgreSQL."""
    url = None if database.name == "postgresql" else database.url
    done = run(command("examples.demo", "--act", "1", "--messages", str(MESSAGES), url=url))
    assert (done.returncode, done.stderr) == (0, "")
    assert "With the inbox every departure counts exactly once." in done.stdout
    rows = table(done.stdout)
    expected = totals.of(departures[:MESSAGES])
    count, without, with_inbox = rows["departures counted"]
    assert count == with_inbox == expected.departures == MESSAGES
    assert without >= MESSAGES + MESSAGES // 10
    assert rows["minutes of delay"][0] == rows["minutes of delay"][2] == expected.delay
    assert rows[f"wrong airlines (of {len(expected.airlines)})"][2] == 0
    assert rows[f"wrong airports (of {len(expected.airports)})"][1:] == [3, 0]
    assert rows["duplicates refused"][0] == 0
    assert rows["duplicates refused"][1] >= MESSAGES // 10
    assert min(rows["at two workers concurrently"]) > 0
    assert min(rows["of these committed before"]) > 0
    assert min(rows["messages/s"]) > 0


@pytest.mark.long
def test_the_demo_leaves_nothing_behind(postgres: Database) -> None:
    """The demo deletes its tables and its inbox rows afterwards, but not the rows of others."""
    message = tables().message
    engine = postgres.engine()
    with engine.begin() as connection:
        connection.execute(message.insert().values(consumer="other", key="key", claim=b"0" * 16))
    run(command("examples.demo", "--act", "1", "--messages", "100", url=postgres.url))
    assert not [name for name in inspect(engine).get_table_names() if name.startswith("demo_")]
    with engine.connect() as connection:
        assert connection.execute(select(message.c.consumer)).scalars().all() == ["other"]


@pytest.mark.long
def test_the_demo_can_fail(postgres: Database, tmp_path: Path) -> None:
    """With an inbox that calls every message new, the totals are wrong and the exit code is 1."""
    script = tmp_path / "broken.py"
    script.write_text(f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{BROKEN}")
    url = postgres.url.render_as_string(hide_password=False)
    done = run([sys.executable, str(script), "--act", "1", "--messages", "1000", "--url", url])
    assert done.returncode == 1, done.stdout + done.stderr
    assert "WRONG" in done.stdout
    assert table(done.stdout)["departures counted"][2] > 1_000


@pytest.mark.long
def test_a_single_message_is_enough() -> None:
    """The demo runs with a single message, too, and with a web page meanwhile."""
    done = run(command("examples.demo", "--act", "1", "--messages", "1", "--web"))
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    assert "while the demo runs: http://127.0.0.1:" in done.stdout


def test_the_demo_says_why_it_cannot_run(
    departures: list[Departure], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """If the demo cannot run, it prints one reason, without a traceback or password, and exits with its own
    code."""
    monkeypatch.setattr(flights, "read", lambda: departures[:100])
    assert main(["--url", "postgresql://somebody:secret@127.0.0.1:1/nowhere?password=secret"]) == 2
    printed, errors = capsys.readouterr()
    assert "could not run" in printed
    assert "Traceback" not in printed + errors
    assert "secret" not in printed + errors


@pytest.mark.long
def test_the_demo_can_be_interrupted(postgres: Database) -> None:
    """Ctrl-C ends the demo and all its workers, removes its tables, and prints no traceback."""
    engine = postgres.engine(isolation_level="AUTOCOMMIT")
    counted = select(func.sum(totals.airline.c.departures))

    def has_counted() -> bool:
        with engine.connect() as connection:
            return inspect(connection).has_table("demo_airline") and bool(connection.scalar(counted))

    interrupted(has_counted, "examples.demo", "--act", "1", url=postgres.url)
    assert not inspect(engine).has_table("demo_airline")


def test_the_key_identifies_a_departure(departures: list[Departure]) -> None:
    """The key's columns identify each departure, and none of them can be left out."""
    assert flights.distinct(departures) == len(departures) == 336_776
    assert flights.distinct(departures, without="origin") == 336_752
    assert all(flights.distinct(departures, without=name) < 336_776 for name in flights.KEY)


def test_a_tenth_of_the_messages_comes_again(departures: list[Departure]) -> None:
    """The stream contains every message, a tenth of them twice, and is the same each time."""
    some = departures[:1_000]
    delivered = stream.deliveries(some, 50)
    assert set(delivered) == set(some)
    assert len(delivered) == 1_100
    assert delivered == stream.deliveries(some, 50)


def until(is_true: Callable[[], bool], otherwise: str, timeout: float = 60) -> None:
    """Wait until a condition is true, for at most `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not is_true():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.05)


def interrupted(
    has_begun: Callable[[], bool], module: str, *arguments: str, url: URL, timeout: float = 60
) -> None:
    """Run a program, press Ctrl-C once it has begun, and check that it ends with all its processes, and
    without a traceback."""
    program = subprocess.Popen(
        command(module, *arguments, url=url),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    until(has_begun, "it has not begun", timeout)
    os.killpg(program.pid, signal.SIGINT)
    output, errors = program.communicate(timeout=100)
    assert (program.returncode, errors) == (130, "")
    assert "interrupted" in output
    until(lambda: not is_alive(program.pid), "a process is left")


def is_alive(group: int) -> bool:
    """Whether any process of the group is still running."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def table(output: str) -> dict[str, list[int]]:
    """The numbers of the demo's table, by label."""
    rows = re.findall(r"^│ (.+?) +│(.*)│$", output, re.MULTILINE)
    numbers = (
        (label.strip(), [number for cell in cells.split("│") if (number := cell.strip().replace(",", ""))])
        for label, cells in rows
    )
    return {label: [int(number) for number in found if number.isdigit()] for label, found in numbers}
