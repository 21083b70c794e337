"""Act two of the demo: Spark writes each departure once, and the demo reports an error if it does not."""

import sys
from pathlib import Path

import pytest
from sqlalchemy import inspect, make_url

from examples.demo import flights, second_act, totals
from inbox.schema import tables
from tests.examples.test_demo import interrupted, table
from tests.examples.test_demo_outbox import has_rows
from tests.support.database import Database
from tests.support.program import ROOT, command, run
from tests.support.spark.program import assert_nothing_left, need_spark, output, temporary_folder

MESSAGES = 4_000
FORGETFUL = """
import sys
from uuid import uuid4

from examples.demo import __main__, load, second_act
from spark import InboxWriter


def write(rows, url):
    return InboxWriter(url, "demo_departure", key=load.KEY, consumer=uuid4().hex).write(rows).replayed


load.with_inbox = write
second_act.JDBC_PACKAGE = "no package"
if __name__ == "__main__":
    sys.exit(__main__.main(sys.argv[1:]))
"""


@pytest.mark.long
def test_act_two_is_exact(postgres: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a kill and a second submission, the inbox writer's table contains each departure once."""
    need_spark()
    temporary = temporary_folder(tmp_path, monkeypatch)
    printed = "\n".join(output("examples.demo", "--act", "2", "--messages", str(MESSAGES), url=postgres.url))
    assert "With the inbox writer every departure counts exactly once." in printed
    rows = table(printed)
    expected = totals.of(flights.read()[:MESSAGES])
    assert (rows["rows"][0], rows["rows"][-1]) == (MESSAGES, MESSAGES)
    assert rows["minutes of delay"][0] == rows["minutes of delay"][-1] == expected.delay
    assert rows[f"wrong airlines (of {len(expected.airlines)})"][-1] == 0
    assert rows["executors killed"][-1] >= 1
    if "left out" not in printed:
        assert_jdbc_writes_twice(rows)
    assert_nothing_left(temporary)
    assert_no_rows_left(postgres)


def assert_jdbc_writes_twice(rows: dict[str, list[int]]) -> None:
    """The rows of Spark's own writer add up: nothing is lost, and every extra row is explained."""
    found = rows["rows"][1]
    twice, _ = rows["rows written by both jobs"]
    copies, _ = rows["copies in the DataFrame, written"]
    assert rows["different departures"][1] == MESSAGES
    assert copies == MESSAGES // 10
    assert found == MESSAGES + copies + twice
    assert rows["rows in the table at that moment"][0] <= twice
    assert twice >= MESSAGES // 2


def assert_no_rows_left(database: Database) -> None:
    """The act's table and its rows in the inbox tables are deleted."""
    engine = database.engine()
    assert not [name for name in inspect(engine).get_table_names() if name.startswith("demo_")]
    with engine.connect() as connection:
        for each in (tables().message, tables().ledger):
            assert not connection.execute(each.select()).all()


@pytest.mark.long
def test_act_two_can_fail(postgres: Database, tmp_path: Path) -> None:
    """With a writer that forgets its keys, the exit code is 1. If the JDBC driver cannot be downloaded, the
    demo says so."""
    need_spark()
    script = tmp_path / "forgetful.py"
    script.write_text(f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{FORGETFUL}")
    url = postgres.url.render_as_string(hide_password=False)
    arguments = ["--act", "2", "--messages", "1000", "--url", url]
    done = run([sys.executable, str(script), *arguments], timeout=400)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "WRONG" in done.stdout
    assert "JDBC writer is left out: no package cannot be fetched" in done.stdout
    assert table(done.stdout)["rows"][1] > 1_000


@pytest.mark.long
def test_act_two_can_be_interrupted(
    postgres: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C ends the demo, Spark and its executors, and deletes what they wrote."""
    need_spark()
    temporary = temporary_folder(tmp_path, monkeypatch)
    engine = postgres.engine(isolation_level="AUTOCOMMIT")
    interrupted(lambda: has_rows(engine), "examples.demo", "--act", "2", url=postgres.url, timeout=200)
    assert_nothing_left(temporary)
    assert_no_rows_left(postgres)


@pytest.mark.long
def test_without_java_act_two_is_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without Java the demo runs the other acts, and names what is missing. If only act two is asked for,
    that is an error."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    printed = output("examples.demo", "--messages", "100")
    assert f"Act two (Spark) is left out: {tmp_path}/bin/java does not run." in printed
    done = run(command("examples.demo", "--act", "2"))
    assert done.returncode == 2
    assert f"The demo could not run: {tmp_path}/bin/java does not run" in done.stdout


def test_act_two_says_which_database_it_needs() -> None:
    """The act needs PostgreSQL, because it compares with Spark's JDBC writer there."""
    assert second_act.missing(make_url("postgresql+psycopg://host/database")) is None
    assert second_act.missing(make_url("sqlite:///file")) == "it needs PostgreSQL, and this is sqlite"
