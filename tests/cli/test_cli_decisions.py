"""The commands that decide about many messages, and the one that prints who decided what."""

from collections.abc import Callable

import pytest
from sqlalchemy import Engine, insert

import inbox
import outbox
from inbox import SqlStore, Status
from inbox._status_mode.stores import Store
from inbox.schema import tables
from outbox import Refused
from tests.cli.test_cli_repair import rows
from tests.support.cli import Done, as_json, error, in_this_process, succeeded
from tests.support.database import Database
from tests.support.on_servers import both_stores, on
from tests.support.outbox_publishers import TABLES as OUTBOX
from tests.support.outbox_publishers import Recorder, count, dead, publish, relay
from tests.support.status_mode.stores import CONSUMER, Place, end, request, stored

Run = Callable[..., Done]
ANN = ("--by", "ann", "--why", "the broker is back")


@pytest.fixture
def run(postgres: Database) -> Run:
    """A function that runs a command on the test's database."""
    url = postgres.url.render_as_string(hide_password=False)
    return lambda *arguments: in_this_process(*arguments, url=url)


@pytest.fixture
def decide(place: Place) -> Run:
    """A function that runs `inbox-outbox inbox ...` on the test's store."""
    prefix = ["--prefix", place.prefix] if place.prefix else []
    return lambda *arguments: in_this_process("inbox", *arguments, *prefix, url=place.url)


def letters(engine: Engine, *names: str) -> list[str]:
    """Publish messages that die; return their ids."""
    made = publish(engine, *names)
    relay(engine, Recorder(lambda _: Refused("queue is full")))
    return made


def test_who_decided_what(engine: Engine, run: Run) -> None:
    """Every command that decides takes `--by` and `--why`; `decisions` prints them, the newest first."""
    first, second, *_ = letters(engine, *(f"{key}1" for key in "abcd"))
    store = SqlStore(engine)
    ends = {"k1": Status.DEAD, "k2": Status.FAILED, "k3": Status.DEAD}
    for key, status in ends.items():
        end(store, store.claim(request(key)), status)
    with engine.begin() as connection:
        mismatch = {"consumer": "billing", "verdict": "mismatch", "times": 1}
        refused = [mismatch | {"key": key} for key in ("k4", "k5", "k6")]
        connection.execute(insert(tables().refused), refused)
    for command in (
        "outbox pause mail",
        "outbox resume mail",
        f"outbox retry {first}",
        f"outbox drop {second}",
        "outbox retry --all dead --key c",
        "outbox drop --dead-older-than 0s",
        "outbox buckets --count 3",
        f"inbox retry {CONSUMER} k1",
        f"inbox discard {CONSUMER} k2",
        "inbox discard --all dead",
        "inbox set-policy billing --mode exactly-once --retention 7d",
        "inbox dismiss billing k4",
        "inbox dismiss --all --kind mismatch",
    ):
        succeeded(run(*command.split(), *ANN))
    printed = rows(succeeded(run("decisions")))
    assert all(each[1] == "ann" and each[-1] == "the broker is back" for each in printed)
    assert [each[2] for each in reversed(printed)] == [
        "outbox.pause",
        "outbox.resume",
        "outbox.retry",
        "outbox.drop",
        "outbox.retry_all",
        "outbox.purge_dead",
        "outbox.set_bucket_count",
        "inbox.retry",
        "inbox.discard",
        "inbox.discard_all",
        "inbox.set_policy",
        "inbox.dismiss",
        "inbox.dismiss_all",
    ]
    (newest,) = as_json(run("decisions", "--limit", "1", "--json"))
    assert (newest["action"], newest["filter"], newest["count"]) == (
        "inbox.dismiss_all",
        {"kind": "mismatch"},
        2,
    )


def test_who_decides_by_default(engine: Engine, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the user who is logged in; without `--why` no reason is stored."""
    monkeypatch.setenv("USER", "bob")
    succeeded(run("outbox", "pause"))
    (found,) = outbox.decisions(engine)
    assert (found.by, found.why) == ("bob", None)


def test_retry_many_letters(engine: Engine, run: Run) -> None:
    """`outbox retry --all` takes filters; a dry run prints the number and some of the messages, and changes
    nothing."""
    made = letters(engine, "a1", "b1")
    printed = succeeded(run("outbox", "retry", "--all", "dead", "--error", "is full", "--dry-run"))
    assert printed.startswith("2 messages are dead and would be sent again\n")
    assert [each[0] for each in rows(printed)] == made
    assert (len(dead(engine)), outbox.decisions(engine)) == (2, [])
    found = as_json(run("outbox", "retry", "--all", "dead", "--key", "a", "--dry-run", "--json"))
    assert found == {"messages": 1, "examples": made[:1]}
    assert as_json(run("outbox", "retry", "--all", "dead", "--key", "a", "--json")) == {"messages": 1}
    printed = succeeded(run("outbox", "retry", "--all", "dead", "--error", "IS FULL"))
    assert printed == "0 messages were dead and are sent again\n"
    assert [
        each[0] for each in rows(succeeded(run("outbox", "peek", "--dead", "--error", "is full")))
    ] == made[1:]


def test_drop_many_messages(engine: Engine, run: Run) -> None:
    """`outbox drop --all` needs `--yes` for more than one message; the error says how many there are. Without
    it, the command takes only the message that it has seen."""
    letters(engine, "a1", "b1", "c1")
    done = run("outbox", "drop", "--all", "dead")
    assert (done.returncode, error(done)) == (
        2,
        "--all: this drops 3 messages; if that is what you want, add --yes",
    )
    assert count(engine, OUTBOX.dead) == 3
    assert succeeded(run("outbox", "drop", "--all", "dead", "--dry-run")).startswith(
        "3 messages are dead and would be dropped\n"
    )
    assert (
        succeeded(run("outbox", "drop", "--all", "dead", "--key", "a"))
        == "1 message was dead and is dropped\n"
    )
    assert outbox.decisions(engine)[0].filter["seen"] == 1
    (first, _) = (each.id for each in outbox.peek(engine, state="dead"))
    assert succeeded(run("outbox", "drop", first, "--dry-run")) == f"{first} was dead and would be gone\n"
    options = ["--dead-older-than", "0s", "--dry-run"]
    assert succeeded(run("outbox", "drop", *options)) == "2 dead letters would be dropped\n"
    assert count(engine, OUTBOX.dead) == 2
    assert (
        succeeded(run("outbox", "drop", "--all", "dead", "--yes")) == "2 messages were dead and are dropped\n"
    )
    assert "seen" not in outbox.decisions(engine)[0].filter
    assert succeeded(run("outbox", "drop", "--all", "dead")) == "0 messages were dead and are dropped\n"


@both_stores
def test_decide_about_many_messages(store: Store, decide: Run) -> None:
    """`inbox retry`, `discard` and `release` take `--all` with filters. What cannot be taken back needs
    `--yes` for more than one message; a dry run prints the number and some of the messages."""
    for key in "abc":
        end(store, store.claim(request(key)), Status.DEAD)
    printed = succeeded(decide("retry", "--all", "dead", "--consumer", CONSUMER, "--dry-run"))
    assert printed.startswith("3 messages are dead and would be retried\n")
    assert [each[1] for each in rows(printed)] == ["a", "b", "c"]
    assert succeeded(decide("retry", "--all", "dead", "--key", "a")) == "1 message was dead and is retried\n"
    done = decide("discard", "--all", "dead")
    assert (done.returncode, error(done)) == (
        2,
        "--all: this discards 2 messages; if that is what you want, add --yes",
    )
    assert stored(store, "b").status is Status.DEAD
    value = as_json(decide("discard", "--all", "dead", "--error", "no", "--yes", "--json", *ANN))
    assert value == {"messages": 2}
    assert stored(store, "b").error == "discarded by ann: the broker is back"
    store.claim(request("d"))
    assert [each[1] for each in rows(succeeded(decide("list", "--key", "d")))] == ["d"]
    assert succeeded(decide("release", "--all", "consuming")) == "1 message was consuming and is released\n"
    assert [each[1] for each in rows(succeeded(decide("list", "--error", "released")))] == ["d"]
    if isinstance(store, SqlStore):
        assert [each.filter.get("seen") for each in inbox.decisions(store.engine)[:2]] == [1, None]


@on("sqlite")
def test_a_dry_run_of_a_purge(migrated: Database) -> None:
    """`inbox purge --dry-run` prints how many rows would be deleted, and deletes none."""
    store, url = SqlStore(migrated.engine()), migrated.url.render_as_string(hide_password=False)
    end(store, store.claim(request("a")), Status.CONSUMED)
    options = ["--older-than", "0s", "--override", "--dry-run"]
    _, _, printed = succeeded(in_this_process("inbox", "purge", *options, url=url)).partition("\n")
    assert printed.startswith("0 rows would be deleted, ")  # a row stays one minute longer
    assert as_json(in_this_process("inbox", "purge", "--dry-run", "--json", url=url))["batches"] == 0
    assert len(inbox.list_messages(store)) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("outbox retry", "expected the id of a message, or --all"),
        ("outbox retry 1 --dry-run", "--error, --dry-run: expected only with --all"),
        ("outbox retry 1 --error a", "--error, --dry-run: expected only with --all"),
        ("outbox retry --all delayed", "state='delayed': expected dead, held, waiting or unknown"),
        ("outbox drop", "expected the id of a message, or --dead-older-than, or --all"),
        ("outbox drop 1 --all dead", "expected the id of a message, or --dead-older-than, or --all"),
        ("outbox drop --dead-older-than 1d --key a", "--key, --error: expected only with --all"),
        ("outbox drop 1 --topic a", "--topic: expected only with --dead-older-than or --all"),
        ("outbox peek --state delayed --error a", "--error='a': delayed messages have none"),
        ("outbox pause --why=", "--why='': 0 characters, expected 1 to 1,000"),
        ("inbox retry --all dead orders a", "expected a consumer and a key, or --all"),
        ("inbox retry orders a --key b", "--consumer, --key, --error, --dry-run: expected only with --all"),
        ("inbox retry orders a --dry-run", "--consumer, --key, --error, --dry-run: expected only with --all"),
        ("inbox retry --all halted", "--all='halted': expected dead or failed"),
        ("inbox release --all dead", "--all='dead': expected consuming"),
        ("decisions --limit 0", "--limit=0: expected a whole number, one or more"),
    ],
)
def test_wrong_usage(arguments: str, said: str) -> None:
    """A wrong option is a usage error with exit code 2, in one line that names the option."""
    done = in_this_process(*arguments.split(), url="sqlite://")
    assert (done.returncode, error(done)) == (2, said)
