"""What the commands do."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import func, inspect, select

import inbox
from inbox import Inbox
from inbox.schema import REVISION, metadata, tables
from tests.support.cli import as_json, error, fill, in_this_process, inbox_outbox, line, succeeded
from tests.support.database import Database
from tests.support.inspection import snapshot
from tests.support.on_servers import each_on, on
from tests.support.processes import wait_until
from tests.support.program import ROOT
from tests.support.script import run_script

MESSAGE = tables().message
TWO_WEEKS = timedelta(days=14)


def count(database: Database) -> int:
    """How many rows the inbox has."""
    with database.engine().connect() as connection:
        return connection.execute(select(func.count()).select_from(MESSAGE)).scalar_one()


def test_migrate(database: Database) -> None:
    """`migrate` creates the tables and prints their revision; `--to base` removes them."""
    up = inbox_outbox("migrate", url=database.url)
    assert succeeded(up) == f"tables are at revision {REVISION}\n"
    assert inspect(database.engine()).has_table("inbox_message")
    down = inbox_outbox("migrate", "--to", "base", url=database.url)
    assert succeeded(down) == "tables are at revision base\n"
    assert inspect(database.engine()).get_table_names() == []


@on("postgresql", "sqlite")
def test_migrate_prints_sql(database: Database) -> None:
    """`migrate --sql` changes nothing; the SQL that it prints creates the tables as they are declared."""
    script = succeeded(inbox_outbox("migrate", "--sql", url=database.url))
    engine = database.engine()
    assert inspect(engine).get_table_names() == []
    run_script(database, script)
    made = snapshot(engine)
    assert succeeded(inbox_outbox("migrate", url=database.url)).endswith(f"{REVISION}\n")
    metadata.drop_all(engine)
    metadata.create_all(engine)
    assert made == snapshot(engine)


@each_on("postgresql", "way", [([],), (["--sql"],)], [([],)], among=["sqlite"])
def test_a_schema(database: Database, way: list[str]) -> None:
    """On PostgreSQL `--schema` puts the tables into a schema, and all commands find them there; on other
    databases it is a usage error."""
    done = inbox_outbox("migrate", *way, "--schema", "my app", url=database.url)
    if database.name != "postgresql":
        assert error(done) == "--schema='my app': only PostgreSQL has schemas inside a database"
        assert done.returncode == 2
        return
    output = succeeded(done)
    if way:
        run_script(database, output)
    engine = database.engine()
    assert set(inspect(engine).get_table_names("my app")) == set(metadata.tables)
    with engine.begin() as connection:
        Inbox("billing", schema="my app").accept(connection, "order-1")
    for command in (["status"], ["show", "billing", "order-1"], ["purge"]):
        succeeded(inbox_outbox("inbox", *command, "--schema", "my app", url=database.url))


def test_status(postgres: Database) -> None:
    """`inbox status` prints one line for each consumer: rows, rate, age and size."""
    fill(postgres.engine(), 3, TWO_WEEKS)
    fill(postgres.engine(), 1234, consumer="shipping")
    lines = succeeded(inbox_outbox("inbox", "status", url=postgres.url)).splitlines()
    billing, shipping = ([cell.strip() for cell in each.split("│")[1:-1]] for each in lines[4:6])
    assert billing[:5] == ["billing", "3", "0", "14 d ago", "14 d ago"]
    assert shipping[:3] == ["shipping", "1,234", "1,234"]


def test_status_as_json(postgres: Database) -> None:
    """`inbox status --json` prints objects with the field names of `ConsumerStatus` and the values that
    `inbox.status` returns, times in ISO 8601."""
    assert as_json(inbox_outbox("inbox", "status", "--json", url=postgres.url)) == []
    fill(postgres.engine(), 3, TWO_WEEKS)
    (only,) = as_json(inbox_outbox("inbox", "status", "--json", url=postgres.url))
    assert only["consumer"] == "billing"
    assert (only["rows"], only["rows_last_hour"]) == (3, 0)
    (row,) = inbox.status(postgres.engine())
    assert row.newest is not None
    assert (only["newest"], only["bytes"]) == (row.newest.isoformat(), row.bytes)
    assert row.bytes > 0
    age = datetime.now(UTC) - datetime.fromisoformat(only["oldest"])
    assert abs(age - TWO_WEEKS) < timedelta(minutes=5)


def test_show(postgres: Database) -> None:
    """`inbox show` prints everything that is stored about one message, in full, whatever its length and
    characters."""
    consumer, key = "bill[b]ing", "[red]" + "long-" * 100 + "\x1b[2J"
    with Inbox(consumer).transaction(postgres.engine(), key, payload=b"1") as work:
        work.result = {"invoice": 7}
    output = succeeded(inbox_outbox("inbox", "show", consumer, key, url=postgres.url))
    for value in (consumer, key.replace("\x1b", "\\x1b"), '{"invoice":7}'):
        assert f" {value} " in output
    stored = as_json(inbox_outbox("inbox", "show", consumer, key, "--json", url=postgres.url))
    assert (stored["consumer"], stored["key"]) == (consumer, key)
    assert json.loads(stored["result"]) == {"invoice": 7}
    assert len(stored["claim"]) == len(stored["digest"]) == 32


def test_show_finds_a_key_of_parts(postgres: Database) -> None:
    """A key given as a tuple is found by its stored form, a JSON array."""
    with postgres.engine().begin() as connection:
        Inbox("billing").accept(connection, ("order", 1))
    stored = as_json(inbox_outbox("inbox", "show", "billing", '["order",1]', "--json", url=postgres.url))
    assert stored["key"] == '["order",1]'


def test_show_an_unknown_message(postgres: Database) -> None:
    """If the inbox does not know the message, the exit code is 3, also with `--json`."""
    for options in ([], ["--json"]):
        done = inbox_outbox("inbox", "show", "billing", "order-1", *options, url=postgres.url)
        assert done.returncode == 3
        assert error(done) == "consumer 'billing' has not taken 'order-1'"


def test_purge(postgres: Database) -> None:
    """`inbox purge` deletes rows older than the retention, and prints how many."""
    fill(postgres.engine(), 7, TWO_WEEKS)
    fill(postgres.engine(), 2, timedelta(days=2), "shipping")
    output = succeeded(inbox_outbox("inbox", "purge", "--batch", "3", url=postgres.url))
    assert output.splitlines()[1].startswith("7 rows deleted in 3 batches, ")
    options = ["--older-than", "1d", "--consumer", "billing"]
    assert as_json(inbox_outbox("inbox", "purge", *options, "--json", url=postgres.url))["rows"] == 0
    done = as_json(inbox_outbox("inbox", "purge", "--older-than", "36h", "--json", url=postgres.url))
    assert (done["rows"], done["batches"], done["finished"]) == (2, 1, True)
    assert count(postgres) == 0


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("7d", 7 * 86_400),
        ("1h30m", 5_400),
        ("1d2h3m4s", 93_784),
        ("PT10M", 600),
        ("P1DT2H", 26 * 3_600),
        ("P36500D", 36_500 * 86_400),
    ],
)
@on("sqlite")
def test_durations(migrated: Database, text: str, seconds: int) -> None:
    """Durations are whole days, hours, minutes and seconds, also several of them, or in ISO 8601."""
    options = "--mode", "exactly-once", "--retention", text, "--json"
    stored = as_json(inbox_outbox("inbox", "set-policy", "billing", *options, url=migrated.url))
    assert stored["retention"] == seconds


def test_policies(postgres: Database) -> None:
    """`inbox set-policy` stores a consumer's mode and retention, `inbox status` shows them, and `inbox purge`
    follows them: a shorter retention has to be overridden explicitly, and consumers without a policy are
    named."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return inbox_outbox("inbox", *arguments, url=postgres.url)

    fill(postgres.engine(), 3, TWO_WEEKS)
    fill(postgres.engine(), 2, TWO_WEEKS, "shipping")
    stored = as_json(run("set-policy", "billing", "--mode", "exactly-once", "--retention", "30d", "--json"))
    assert (stored["mode"], stored["retention"], stored["dead_retention"]) == (
        "exactly-once",
        30 * 86_400,
        None,
    )
    assert " │ exactly-once │ 30d " in succeeded(run("status"))
    assert as_json(run("status", "--json"))[0]["policy"]["retention"] == 30 * 86_400
    done = run("purge", "--older-than", "36h")
    assert (done.returncode, count(postgres)) == (2, 5)
    assert error(done).startswith("retention=36h: consumer 'billing' has asked for 30d")
    assert "no retention is stored for 'shipping': used 7d" in succeeded(run("purge"))
    assert count(postgres) == 3
    assert "\n3 rows deleted" in succeeded(run("purge", "--older-than", "36h", "--override"))
    assert run("set-policy", "orders", "--retention", "1d").returncode == 2
    by_time = run("set-policy", "trips", "--mode", "exactly-once", "--key-time", "ulid", "--json")
    assert as_json(by_time)["key_time"] == "ulid"


@pytest.mark.parametrize("zone", [UTC, None])
def test_purge_up_to_the_oldest_unconsumed(postgres: Database, zone: object) -> None:
    """`--oldest-unconsumed` accepts ISO 8601 with an offset, or without one for UTC."""
    fill(postgres.engine(), 2, timedelta(hours=3))
    fill(postgres.engine(), 2, timedelta(hours=1), "shipping")
    oldest = datetime.now(UTC) - timedelta(hours=2)
    text = (oldest if zone else oldest.replace(tzinfo=None)).isoformat()
    output = inbox_outbox("inbox", "purge", "--oldest-unconsumed", text, "--json", url=postgres.url)
    assert as_json(output)["rows"] == 2


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_purge_out_of_budget(postgres: Database, options: list[str]) -> None:
    """If the budget ends before the work does, the exit code is 4, and the report is still printed."""
    fill(postgres.engine(), 7, TWO_WEEKS)
    done = inbox_outbox("inbox", "purge", "--budget", "0s", *options, url=postgres.url)
    assert (done.returncode, done.stderr) == (4, "")
    assert "0 rows deleted" in done.stdout or json.loads(done.stdout)["finished"] is False


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_progress_is_for_terminals(postgres: Database, options: list[str]) -> None:
    """On a terminal a purge shows its progress on stderr; stdout contains only the report."""
    fill(postgres.engine(), 50, TWO_WEEKS)
    ours, theirs = pty.openpty()
    with open(ours, "rb") as terminal:  # noqa: PTH123 - a descriptor, not a path
        command = line("inbox", "purge", "--batch", "5", *options, url=postgres.url)
        done = subprocess.run(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=theirs, text=True, check=True, timeout=60
        )
        os.close(theirs)
        shown = os.read(terminal.fileno(), 65_536).decode()
    assert "purging" in shown
    assert "\x1b" not in done.stdout
    assert json.loads(done.stdout)["rows"] == 50 if options else "\n50 rows deleted" in done.stdout


def test_a_service_that_purges(postgres: Database) -> None:
    """`inbox purge --every` purges until a signal; with it, each consumer's own times are kept."""
    fill(postgres.engine(), 7, TWO_WEEKS)
    is_done = select(tables().purge.c.finished).where(tables().purge.c.consumer == "")
    command = line("inbox", "purge", "--every", "1h30m", url=postgres.url)
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        with postgres.engine(isolation_level="AUTOCOMMIT").connect() as connection:
            wait_until(lambda: connection.scalar(is_done))
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, out) == (0, "7 messages deleted in 1 purge, 0 failed\n")
    assert "INFO purged 7 messages in" in err
    url = postgres.url.render_as_string(hide_password=False)
    done = in_this_process("inbox", "purge", "--every", "1h", "--older-than", "1d", url=url)
    assert "--every: expected no other option of a purge" in error(done)


def test_ctrl_c(postgres: Database) -> None:
    """Ctrl-C ends a purge with one line and exit code 130; rows deleted before stay deleted."""
    fill(postgres.engine(), 3_000, TWO_WEEKS)
    command = line("inbox", "purge", "--batch", "1", url=postgres.url)
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while count(postgres) == 3_000:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    # If the signal comes while the driver is connecting, it may add a line about an open connection.
    assert process.communicate(timeout=60)[1].splitlines()[0] == "inbox-outbox: interrupted"
    assert process.returncode == 130
    assert 0 < count(postgres) < 3_000


def test_the_environment_names_the_database(postgres: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """INBOX_OUTBOX_URL is used if `--url` is not given; `--url` takes precedence."""
    url = postgres.url.render_as_string(hide_password=False)
    monkeypatch.setenv("INBOX_OUTBOX_URL", url)
    assert as_json(inbox_outbox("inbox", "status", "--json")) == []
    monkeypatch.setenv("INBOX_OUTBOX_URL", "sqlite:////nowhere/at-all.db")
    assert as_json(inbox_outbox("inbox", "status", "--json", url=url)) == []


def test_every_option_comes_from_the_environment_too(
    postgres: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a container is configured: the variable is named after the command and the option."""
    monkeypatch.setenv("INBOX_OUTBOX_INBOX_STATUS_JSON", "1")
    assert as_json(inbox_outbox("inbox", "status", url=postgres.url)) == []


def test_the_console_script(postgres: Database) -> None:
    """The command `inbox-outbox` is the same program."""
    script = Path(sys.executable).with_name("inbox-outbox")
    url = postgres.url.render_as_string(hide_password=False)
    done = subprocess.run(
        [script, "inbox", "status", "--json", "--url", url], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == []
