"""`inbox-outbox health` and `top`, and the topics of `outbox status`."""

import os
import pty
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from json import dumps
from typing import Any

import pytest
from sqlalchemy import Engine, delete, insert, update

import outbox
from inbox import Inbox, SqlStore, StatusInbox
from inbox.schema import metadata_for, tables
from outbox import Refused, Unavailable
from tests.cli.test_cli_repair import rows
from tests.support.cli import Done, as_json, error, in_this_process, line, succeeded
from tests.support.database import Database
from tests.support.outbox_publishers import TABLES, Recorder, due_unmoved, publish, relay
from tests.support.roles import Right, rights, role

Run = Callable[..., Done]


@pytest.fixture
def run(postgres: Database) -> Run:
    """A function that runs a command on the test's database."""
    url = postgres.url.render_as_string(hide_password=False)
    return lambda *arguments: in_this_process(*arguments, url=url)


def test_nothing_needs_anybody(engine: Engine, run: Run) -> None:
    """An outbox that was never used is healthy, and so is one whose relay has just ended."""
    assert succeeded(run("health")).splitlines()[1:] == ["healthy"]
    publish(engine, "a1")
    relay(engine, Recorder())
    assert as_json(run("health", "--json"))["is_healthy"]


def test_no_relay(engine: Engine, run: Run) -> None:
    """Exit code 10: nobody sends, or has ever sent, what waits."""
    publish(engine, "a1")
    done = run("health")
    assert done.returncode == 10
    assert "no relay has ever run; messages wait to be sent" in done.stdout
    relay(engine, Recorder())
    past = datetime.now(UTC) - timedelta(minutes=5)
    with engine.begin() as connection:
        connection.execute(update(TABLES.bucket).values(freed_at=past))
    done = run("health")
    assert done.returncode == 10
    assert f"no relay is running since {past:%Y-%m-%d %H:%M:%S} UTC\n" in done.stdout
    assert run("health", "--max-no-relay", "1h").returncode == 0


def test_a_message_that_waits_for_too_long(engine: Engine, run: Run) -> None:
    """Exit code 7: it names the topic, and why its oldest message was not taken."""
    publish(engine, "a1", topic="mail")
    relay(engine, Recorder({"a1": [Unavailable("the queue is full", 3_600.0)]}))
    with engine.begin() as connection:
        connection.execute(update(TABLES.message).values(created_at=datetime.now(UTC) - timedelta(hours=3)))
    done = run("health")
    assert done.returncode == 7
    assert "the oldest message has waited for 3 h, of topic 'mail': the queue is full" in done.stdout
    outbox.pause(engine, "mail")
    assert "of topic 'mail', which is paused" in run("health").stdout
    assert run("health", "--max-age", "4h").returncode == 0


def test_a_broker_that_is_away(engine: Engine, run: Run) -> None:
    """What rejects every topic is one sentence, and no single topic's error; so is what makes several wait. A
    relay whose buckets nobody takes over is named."""
    for topic in ("mail", "sms"):
        publish(engine, f"{topic}1", topic=topic)
    now = datetime.now(UTC)
    with engine.begin() as connection:
        connection.execute(update(TABLES.message).values(created_at=now - timedelta(hours=3)))
    away = {"since": now - timedelta(minutes=8), "until": now, "reason": "connection refused", "known": 1}
    lanes = {"topics": [{"topic": each, **away} for each in ("mail", "sms")]}
    rejecting = {"name": "r1", "lease_until": now + timedelta(hours=1), "lanes": dumps(lanes, default=str)}
    with engine.begin() as connection:
        connection.execute(insert(TABLES.relay), {"epoch": 1, **rejecting})
    done = run("health")
    assert done.returncode == 14
    assert done.stdout.splitlines()[1:] == [
        "the broker has taken nothing of all 2 topics for 8 min: connection refused",
        "the oldest message has waited for 3 h; the broker takes nothing of any topic",
    ]
    lost = {"epoch": 2, "name": "r2", "lease_until": now - timedelta(minutes=4)}
    with engine.begin() as connection:
        connection.execute(update(TABLES.relay).values(lanes=None))
        connection.execute(insert(TABLES.relay), lost)
        connection.execute(update(TABLES.bucket).values(epoch=2))
    waiting = "the oldest message has waited for 3 h; messages of 2 topics wait for too long (mail, sms)"
    assert run("health").stdout.splitlines()[1:] == [
        "relay 'r2' is lost: its lease ended 4 min ago, and nobody has taken over its 64 buckets",
        waiting,
    ]
    silent = {"lease_ms": 240_000, "lease_until": now + timedelta(seconds=100)}
    with engine.begin() as connection:
        connection.execute(update(TABLES.relay).where(TABLES.relay.c.epoch == 2).values(silent))
    said, *others = run("health").stdout.splitlines()[1:]
    assert others == [waiting]
    silence = "relay 'r2' has given no sign of life for 2 min: it has died, or waits for the database; "
    assert said.startswith(f"{silence}its 64 buckets wait until its lease ends, in ")
    with engine.begin() as connection:
        connection.execute(update(TABLES.relay).values(lease_until=now + timedelta(seconds=200)))
    assert run("health").stdout.splitlines()[1:] == [waiting]


def test_messages_that_wait_for_somebody(engine: Engine, run: Run) -> None:
    """Exit code 11: dead and held messages of the outbox, dead and halted ones of status-table mode."""
    publish(engine, "a1", "b1", topic="mail")
    relay(engine, Recorder({"a1": [Refused("no")]}))
    relay(engine, Recorder({"b1": [Refused("no")]}), after_dead="hold")
    publish(engine, "c1", topic="sms")
    relay(engine, Recorder({"c1": [Refused("no")]}), after_dead="hold")
    orders = StatusInbox("orders", store=SqlStore(engine), max_attempts=1)
    with pytest.raises(ValueError, match="no"), orders.claim("x"):
        raise ValueError("no")
    done = run("health")
    assert done.returncode == 11
    assert done.stdout.splitlines()[1:] == [
        "1 message of the outbox is dead (mail)",
        "1 message of the outbox is held (sms)",
        "1 message of status-table mode is dead (orders)",
    ]
    found = as_json_with(11, run("health", "--json"))
    assert [each["code"] for each in found["problems"]] == [11, 11, 11]
    assert run("health", "--max-stopped", "1").returncode == 0


def test_keys_that_no_purge_deletes(engine: Engine, run: Run) -> None:
    """Exit code 12: it names the consumers."""
    with engine.begin() as connection:
        Inbox("billing").accept(connection, "a")
        old = datetime.now(UTC) - timedelta(days=12)
        connection.execute(update(tables().message).values(accepted_at=old))
    done = run("health")
    assert done.returncode == 12
    late = "keys are up to 5 d past their retention"
    assert f"{late}; no purge has run (billing)" in done.stdout
    with engine.begin() as connection:
        done_at = {"begun_at": old, "ended_at": old, "rows": 0, "finished": True}
        connection.execute(insert(tables().purge).values(consumer="billing", **done_at))
    last = f"the last purge was at {old:%Y-%m-%d %H:%M} UTC"
    assert f"{late}; {last} (billing)" in run("health").stdout
    assert run("health", "--max-overdue", "6d").returncode == 0


def test_what_waits_and_is_not_pending(engine: Engine, run: Run) -> None:
    """A delayed message that is due waits for a relay, and so does one in a bucket that does not exist."""
    due_unmoved(engine, "a1", hours=1, ago=0.01)
    assert run("health").returncode == 10
    with engine.begin() as connection:
        connection.execute(delete(TABLES.delayed))
    assert run("health").returncode == 0
    publish(engine, "a1")
    with engine.begin() as connection:
        connection.execute(update(TABLES.message).values(bucket=1_000))
    assert run("health").returncode == 10
    with engine.begin() as connection:
        connection.execute(update(TABLES.message).values(state="held", error="no", attempts=1))
    assert run("health", "--max-stopped", "1").returncode == 0


def test_a_role_that_may_see_one_half(postgres: Database, engine: Engine) -> None:
    """Exit code 13 if the other half is healthy: nothing is said of what was not seen, unless nobody has
    asked for it. A half of which policies hide rows is not seen either."""
    with role(postgres) as app:
        for right in rights("postgresql", "look"):
            if right.thing.startswith("outbox"):
                app.grant(right)
        url = app.database.url.render_as_string(hide_password=False)
        done = in_this_process("health", url=url)
        assert done.returncode == 13
        assert "not seen: permission denied for table inbox_" in done.stdout
        assert "healthy" not in done.stdout
        (problem,) = as_json_with(13, in_this_process("health", "--json", url=url))["problems"]
        assert problem["code"] == 13
        assert "nothing needs you" not in succeeded(in_this_process("top", url=url))
        assert "permission denied" in error(in_this_process("health", "--only", "inbox", url=url))
        assert in_this_process("health", "--only", "outbox", url=url).returncode == 0
        publish(engine, "a1")
        assert in_this_process("health", url=url).returncode == 10
        app.revoke(Right("SELECT", "outbox_message"))
        assert "permission denied" in error(in_this_process("health", url=url))
        for right in rights("postgresql", "look"):
            app.grant(right)
        with engine.begin() as connection:
            connection.exec_driver_sql("ALTER TABLE outbox_message ENABLE ROW LEVEL SECURITY")
        done = in_this_process("health", url=url)
        assert done.returncode == 13
        assert "not seen: table outbox_message: row-level policies hide rows from this role" in done.stdout


@pytest.mark.parametrize("feature", ["inbox", "outbox"])
def test_one_half(database: Database, feature: str) -> None:
    """Of a database with the tables of one half, only that is looked at; without tables there is an error."""
    url = database.url.render_as_string(hide_password=False)
    assert "inbox-outbox migrate" in error(in_this_process("health", url=url))
    metadata_for(feature).create_all(database.engine())
    assert in_this_process("health", url=url).returncode == 0
    assert in_this_process("top", url=url).returncode == 0


def test_status_by_topic(engine: Engine, run: Run) -> None:
    """Each topic has its own row, with an error and the id of a message that has it; an empty outbox has no
    row. Once a message was sent and not taken, the words for that are explained, in `top`, too."""
    explained = "pending: not sent yet; waiting: sent and not taken;"
    assert explained not in run("outbox", "status").stdout + run("top").stdout
    assert len(rows(succeeded(run("outbox", "status", "--by-topic")))) == 1
    (first, _) = publish(engine, "a1", "b1", topic="mail")
    relay(engine, Recorder({"a1": [Unavailable("the queue is full", 3_600.0)]}))
    publish(engine, "a2", topic="mail")
    _, row = rows(succeeded(run("outbox", "status", "--by-topic")))
    assert row[:6] == ["mail", "1", "1", "0", "0", "0"]
    assert row[8] == f"the queue is full ({first})"
    assert all(explained in succeeded(run(*command)) for command in (("outbox", "status"), ("top",)))
    (topic,) = as_json(run("outbox", "status", "--by-topic", "--json"))["topics"]
    assert (topic["topic"], topic["waiting"]) == ("mail", {"number": 1, "precision": "exact"})


def test_top_looks_again(postgres: Database, engine: Engine) -> None:
    """On a terminal, `top` shows what has changed meanwhile, and goes on after its connection has broken;
    Ctrl-C ends it normally. Elsewhere it looks once."""
    url = postgres.url.render_as_string(hide_password=False)
    assert "nothing needs you" in succeeded(in_this_process("top", url=url))
    command = line("top", "--every", "1s", url=url)
    child, terminal = pty.fork()
    if child == 0:
        os.execvp(command[0], command)  # noqa: S606 - it replaces the child of this test
    os.set_blocking(terminal, False)
    seen = wait_for(terminal, "nothing needs you")
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    seen += wait_for(terminal, "terminating connection")
    publish(engine, "a1", topic="mail")
    relay(engine, Recorder({"a1": [Refused("too long")]}))
    seen += wait_for(terminal, "1 message of the outbox is dead (mail)")
    os.write(terminal, b"\x03")
    assert os.waitpid(child, 0)[1] == 0, seen


def wait_for(terminal: int, text: str) -> str:
    """What the terminal shows until this text appears."""
    seen, end = "", time.monotonic() + 60
    while text not in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen):
        assert time.monotonic() < end, seen
        try:
            seen += os.read(terminal, 65_536).decode(errors="replace")
        except BlockingIOError:
            time.sleep(0.05)
    return seen


def as_json_with(code: int, done: Done) -> Any:
    """The JSON of a command that ends with this exit code."""
    assert done.returncode == code
    return as_json(Done(done.args, 0, done.stdout, done.stderr))


def test_several_databases(
    engine: Engine, postgres: Database, sqlite: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`health` and `top` look at each; one that does not answer is the most urgent problem, and hides no
    other one. The environment can name them, too."""
    publish(engine, "a1", topic="mail")
    shop, depot = (each.url.render_as_string(hide_password=False) for each in (postgres, sqlite))
    given = (f"shop={shop}", f"depot={depot}", "gone=postgresql://ann:hidden@127.0.0.1:1/gone")
    three = [word for each in given for word in ("--url", each)]
    done = in_this_process("health", *three)
    assert done.returncode == 1
    assert "no relay has ever run; messages wait to be sent\ndatabase depot: " in done.stdout
    assert "\nhealthy\ndatabase gone: postgresql://127.0.0.1:1/gone\nit does not answer: " in done.stdout
    found = as_json_with(1, in_this_process("health", "--json", *three))
    assert [each["is_healthy"] for each in found["databases"].values()] == [False, True, False]
    shown = succeeded(in_this_process("top", *three))
    names = [each for each in shown.splitlines() if each in ("shop", "depot", "gone", "nothing needs you")]
    assert names == ["shop", "depot", "nothing needs you", "gone"]
    assert "hidden" not in done.stdout + str(found) + shown
    monkeypatch.setenv("INBOX_OUTBOX_URL", " ".join(given[:2]))
    assert in_this_process("health").returncode == 10
    monkeypatch.setenv("INBOX_OUTBOX_URL", "sqlite:////nowhere at all/x.db")
    assert "unable to open database file" in error(in_this_process("health"))


@pytest.mark.parametrize(
    ("urls", "said"),
    [
        (("sqlite:///a.db", "sqlite:///b.db"), "the database number 1 has no name"),
        (("a=sqlite:///a.db", "postgresql://x:hidden@h/b"), "the database number 2 has no name"),
        (("a=sqlite:///a.db", "a=sqlite:///b.db"), "two databases have the name 'a'"),
        (("a=sqlite:///a.db", "b=nosuch://h/b"), "dialect='nosuch'"),
        (("a/b=sqlite:///a.db",), "url: expected something like"),
    ],
)
def test_addresses_that_cannot_be_used(urls: tuple[str, ...], said: str) -> None:
    """Each is refused by the place where it stands, without the address."""
    found = error(in_this_process("health", *(word for each in urls for word in ("--url", each))))
    assert said in found
    assert "hidden" not in found
