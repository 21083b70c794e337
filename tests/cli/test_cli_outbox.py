"""The commands about the outbox: `inbox-outbox outbox ...` and `inbox-outbox audit`."""

import json
from collections.abc import Callable

import pytest
from sqlalchemy import Engine, update

import outbox
from inbox import Inbox
from outbox import Envelope, Outcome, Refused, Unavailable
from tests.cli.test_cli_repair import rows
from tests.support.cases import case
from tests.support.cli import Done, as_json, error, in_this_process, succeeded
from tests.support.database import Database
from tests.support.outbox_publishers import ACCEPTED, TABLES, Recorder, count, dead, publish, relay

Run = Callable[..., Done]


@pytest.fixture
def run(postgres: Database) -> Run:
    """A function that runs a command on the test's database."""
    url = postgres.url.render_as_string(hide_password=False)
    return lambda *arguments: in_this_process(*arguments, url=url)


def in_three_states(engine: Engine) -> tuple[str, str, str]:
    """Make one waiting, one delayed and one dead message; return their ids."""
    waiting, refused = publish(engine, "w1", "x1")
    relay(engine, Recorder({"w1": [Unavailable("full", 7_200.0)], "x1": [Refused("[no]")]}), keep_sent=60)
    (delayed,) = publish(engine, "d1", delay=7_200)
    return waiting, delayed, refused


def test_status(engine: Engine, run: Run) -> None:
    """`status` prints a count for each state, and what is paused; `--json` prints the fields of
    `OutboxStatus`."""
    in_three_states(engine)
    publish(engine, *(f"-{number}" for number in range(1_234)))
    outbox.pause(engine, "mail")
    (row,) = rows(succeeded(run("outbox", "status")))
    assert row[:6] == ["1,234", "1", "0", "0", "1", "1"]
    assert row[6].endswith(" s")
    assert row[7:] == ["64", "64", "mail"]
    found = as_json(run("outbox", "status", "--json"))
    assert (found["pending"], found["paused"], found["relays"]) == (1_234, ["mail"], [])
    assert as_json(run("outbox", "status", "--exact", "--json"))["estimated"] == []


def test_buckets(engine: Engine, run: Run) -> None:
    """`buckets` prints the generations. With `--count` it first changes the number; then it and `status`
    print how many messages each generation has."""
    publish(engine, "a1", "b1")
    assert rows(succeeded(run("outbox", "buckets"))) == [["1", "64", "-", "-"]]
    first, second = rows(succeeded(run("outbox", "buckets", "--count", "7")))
    assert (first, second[1], second[3]) == (["1", "64", "-", "2"], "7", "0")
    publish(engine, "a2")
    assert [row[3] for row in rows(succeeded(run("outbox", "status")))[1:]] == ["2", "1"]
    found = as_json(run("outbox", "buckets", "--json"))
    assert [(each["buckets"], each["messages"]) for each in found] == [(64, 2), (7, 1)]


def test_status_of_relays(engine: Engine, run: Run) -> None:
    """A running relay is printed as one line with its buckets, the rest of its lease, and how many messages
    it is sending."""
    publish(engine, "a1", "b1")
    printed: list[str] = []

    def answer(_: Envelope) -> Outcome:
        printed.append(succeeded(run("outbox", "status")))
        return ACCEPTED

    relay(engine, Recorder(answer), name="one", lease=300)
    _, (name, _, buckets, lease, sending) = rows(printed[0])
    assert (name, buckets, sending) == ("one", "64", "2")
    assert lease.endswith(" s left")


def test_peek(engine: Engine, run: Run) -> None:
    """`peek` prints one line for each message that waits for a relay, or for each selected message; texts are
    printed unchanged."""
    waiting, delayed, refused = in_three_states(engine)
    (row,) = rows(succeeded(run("outbox", "peek")))
    assert row[:3] + row[4:6] + row[7:] == [waiting, "orders", "w", "1", "2 B", "full"]
    assert row[3].startswith("waiting, again in ")
    (row,) = rows(succeeded(run("outbox", "peek", "--state", "delayed")))
    assert row[0] == delayed
    assert row[3].startswith("delayed for ")
    (row,) = rows(succeeded(run("outbox", "peek", "--dead")))
    assert (row[0], row[3], row[7]) == (refused, "dead", "[no]")
    (found,) = as_json(run("outbox", "peek", "--dead", "--topic", "orders", "--key", "x", "--json"))
    assert (found["id"], found["state"], found["attempts"]) == (refused, "dead", 1)
    assert as_json(run("outbox", "peek", "--dead", "--topic", "mail", "--json")) == []


def test_trace(engine: Engine, run: Run) -> None:
    """`trace` says why a message waits, by its id or its key; if there is none, the exit code is 3."""
    waiting, _, refused = in_three_states(engine)
    (row,) = rows(succeeded(run("outbox", "trace", waiting)))
    assert row[:3] == [waiting, "orders", "waiting"]
    (found,) = as_json(run("outbox", "trace", "--key", "x", "--json"))
    assert (found["message"]["id"], row[3] != found["why"]) == (refused, True)
    assert found["why"]
    none = run("outbox", "trace", "gone")
    assert (none.returncode, error(none)) == (3, "no such message waits: it has left, or was never published")


def test_peek_with_errors_first(engine: Engine, run: Run) -> None:
    """With `--topic`, messages whose send has failed come first, unless `--in-order` says otherwise; without
    it only with `--errors-first`."""
    publish(engine, "a1", "b1")
    outbox.pause(engine, "orders")
    (held,) = publish(engine, "h1", topic="mail")
    relay(engine, Recorder(lambda _: Refused("no")), after_dead="hold")
    publish(engine, "c1", topic="mail")
    with engine.begin() as connection:
        connection.execute(update(TABLES.message).values(topic="orders"))

    def first(*options: str) -> str:
        return str(as_json(run("outbox", "peek", *options, "--json"))[0]["id"])

    assert first("--topic", "orders") == first("--errors-first") == held
    assert first("--topic", "orders", "--in-order") == first() != held
    assert len(as_json(run("outbox", "peek", "--topic", "orders", "--json"))) == 4
    assert as_json(run("outbox", "peek", "--topic", "orders", "--dead", "--json")) == []


def test_pause_and_resume(engine: Engine, run: Run) -> None:
    """`pause` and `resume` print whether they changed anything, and which topics are paused afterwards."""
    everything, orders = ("outbox", "resume"), ("outbox", "resume", "orders")
    assert succeeded(run("outbox", "pause")) == "all topics: paused\n"
    assert succeeded(run(*orders)) == "orders: not paused by name before; still paused with all topics\n"
    assert succeeded(run("outbox", "pause", "orders")) == "orders: paused\n"
    assert succeeded(run("outbox", "pause", "orders")) == "orders: paused before\n"
    assert succeeded(run(*orders)) == "orders: not paused by name; still paused with all topics\n"
    outbox.pause(engine, "orders")
    outbox.pause(engine, "mail")
    assert succeeded(run(*everything)) == (
        "all topics: not paused as a whole; still paused by name: mail, orders\n"
    )
    assert as_json(run(*everything, "--json")) == {
        "topic": "*",
        "changed": False,
        "paused": ["mail", "orders"],
    }
    assert succeeded(run(*everything)).startswith("all topics: not paused as a whole before; still paused by")
    assert succeeded(run(*orders)) == "orders: not paused\n"
    assert succeeded(run(*orders)) == "orders: not paused before\n"
    outbox.resume(engine, "mail")
    assert succeeded(run(*everything)) == "all topics: not paused before\n"
    outbox.pause(engine)
    assert succeeded(run(*everything)) == "all topics: not paused\n"


def test_retry(engine: Engine, run: Run) -> None:
    """`retry` takes an id, or a state and filters, and prints what it has done."""
    waiting, _, refused = in_three_states(engine)
    assert succeeded(run("outbox", "retry", waiting)) == f"{waiting} was waiting and is sent again\n"
    assert as_json(run("outbox", "retry", refused, "--json")) == {"id": refused, "was": "dead"}
    relay(engine, Recorder(lambda _: Refused("no")))
    assert as_json(run("outbox", "retry", "--all", "dead", "--key", "w", "--json")) == {"messages": 1}
    assert list(dead(engine)) == ["x1"]
    assert succeeded(run("outbox", "retry", "--all", "dead")).startswith("1 message was dead")


def test_drop(engine: Engine, run: Run) -> None:
    """`drop` takes an id, or an age for dead letters, and prints what it has dropped."""
    waiting, delayed, _ = in_three_states(engine)
    assert succeeded(run("outbox", "drop", waiting)) == f"{waiting} was waiting and is gone\n"
    assert as_json(run("outbox", "drop", delayed, "--json")) == {"id": delayed, "was": "delayed"}
    assert as_json(run("outbox", "drop", "--dead-older-than", "1h", "--json")) == {"messages": 0}
    done = run("outbox", "drop", "--dead-older-than", "0s", "--topic", "orders")
    assert succeeded(done) == "1 dead letter dropped\n"
    for table in (TABLES.message, TABLES.delayed, TABLES.dead):
        assert count(engine, table) == 0


@pytest.mark.parametrize("command", ["retry", "drop"])
def test_an_unknown_message(run: Run, command: str) -> None:
    """If the message does not exist, the exit code is 3."""
    done = run("outbox", command, "nobody")
    assert error(done) == "the outbox has no message 'nobody'; it may have been sent"
    assert done.returncode == 3


def test_a_message_in_another_state(engine: Engine, run: Run) -> None:
    """If the command does not fit the message's state, the exit code is 5."""
    _, delayed, _ = in_three_states(engine)
    done = run("outbox", "retry", delayed)
    assert "state is delayed; this needs dead, held, waiting or unknown" in error(done)
    assert done.returncode == 5


def test_audit(engine: Engine, run: Run) -> None:
    """`audit` prints the counts and the missing messages, with exit code 6, or 0 if none is missing."""
    waiting, _, refused = in_three_states(engine)
    (sent,) = publish(engine, "s1")
    relay(engine, Recorder(), keep_sent=60)
    command = "audit", "--topic", "orders", "--consumer", "billing", "--grace", "0s"
    done = run(*command)
    assert (done.returncode, done.stderr) == (6, "")
    counts, *missing = rows(done.stdout)
    assert counts == ["4", "0", "0", "1", "1", "1", "1"]
    assert [(row[0], row[2]) for row in missing] == [(waiting, "waiting"), (refused, "dead"), (sent, "sent")]
    found = json.loads(run(*command, "--limit", "1", "--json").stdout)
    assert (found["is_complete"], found["not_taken"], len(found["missing"])) == (False, 1, 3)
    outbox.drop(engine, waiting)
    outbox.drop(engine, refused)
    with engine.begin() as connection:
        Inbox("billing").accept(connection, "s")
    assert rows(run(*command).stdout) == [["2", "1", "0", "1", "0", "0", "0"]]
    found = as_json(run(*command, "--json", "--since", "2999-01-01"))
    assert (found["committed"], found["is_complete"]) == (0, True)


def test_audit_without_a_record(engine: Engine, run: Run) -> None:
    """If messages were sent without a record, `audit` says so, with exit code 8; with 6, if others are
    missing."""
    command = "audit", "--topic", "orders", "--consumer", "billing", "--grace", "0s"
    publish(engine, "a1")
    relay(engine, Recorder())
    done = run(*command)
    assert (done.returncode, done.stderr) == (8, "")
    assert "messages may have left without a record: sent by a relay without --keep-sent" in done.stdout
    publish(engine, "b1")
    done = run(*command)
    assert (done.returncode, "without a record" in done.stdout) == (6, True)


def test_audit_of_an_inbox_elsewhere(engine: Engine, run: Run, postgres: Database) -> None:
    """`--inbox-url` gives the consumer's database."""
    publish(engine, "a1")
    relay(engine, Recorder(), keep_sent=60)
    with engine.begin() as connection:
        Inbox("billing").accept(connection, "a")
    there = postgres.url.render_as_string(hide_password=False)
    found = as_json(
        run("audit", "--topic", "orders", "--consumer", "billing", "--inbox-url", there, "--json")
    )
    assert found["taken"] == 1


WRONG: list[tuple[list[str], str]] = [
    (["peek", "--limit", "0"], "--limit=0: expected a whole number"),
    (["peek", "--state", "lost"], "--state"),
    (["peek", "--dead", "--state", "held"], "--dead, --state='held': expected one of the two"),
    (["peek", "--errors-first", "--dead"], "--errors-first, --state='dead': expected one of the two"),
    (["trace"], "expected the id of a message, or --key"),
    (["retry"], "expected the id of a message, or --all"),
    (["retry", "1", "--all", "dead"], "expected the id of a message, or --all"),
    (["retry", "1", "--topic", "a"], "--topic, --key: expected only with --all"),
    (["retry", "--all", "pending"], "state='pending': expected dead, held"),
    (["drop"], "expected the id of a message, or --dead-older-than"),
    (["drop", "1", "--topic", "a"], "--topic: expected only with --dead-older-than"),
    (["drop", "--dead-older-than", "1w"], "--dead-older-than='1w': expected a time such as 30s"),
    (["pause", ""], "topic='': 0 bytes"),
    (["pause", "orders.*"], "topic='orders.*': expected a whole topic, or"),
    (["resume", "orders.*"], "topic='orders.*': expected a whole topic, or"),
    (["buckets", "--count", "0"], "count=0: expected a whole number"),
    (["relay"], "Missing option '--to'"),
    (["relay", "--to", "mqtt://user:s3cr3t@host"], "--to: expected amqp://user@host/vhost"),
    (["relay", "--to", "amqp://"], "--to: expected amqp://"),
    (["relay", "--to", "amqp://host", "--lease", "0s"], "lease="),
    (["relay", "--to", "amqp://host", "--after-dead", "stop"], "--after-dead"),
    (["relay", "--to", "kafka://host:1", "--exchange", "e"], "only RabbitMQ has exchanges"),
    (["relay", "--to", "kafka://host:1?no.such.setting=s3cr3t"], "no.such.setting"),
    (["drain", "--to", "rocketmq://key:s3cr3t@host:port"], "--to: expected rocketmq://"),
    (["drain", "--to", "rocketmq://key:s3cr3t@host", "--exchange", "e"], "only RabbitMQ has exchanges"),
    (["drain", "--to", "sqs://key:s3cr3t@host:port"], "--to: expected sqs://"),
    (["drain", "--to", "sqs://key:s3cr3t@host", "--exchange", "e"], "only RabbitMQ has exchanges"),
]


def test_wrong_usage(run: Run) -> None:
    """A wrong option is a usage error with exit code 2, in one line that names the option and contains no
    password."""
    for arguments, said in WRONG:
        with case(arguments):
            done = run("outbox", *arguments)
            message = error(done)
            assert said in message
            assert "s3cr3t" not in message
            assert done.returncode == 2


def test_settings_that_break_the_promise(postgres: Database) -> None:
    """With settings that could lose or reorder messages a relay does not start: the error names the setting,
    and the exit code is 1."""
    url = postgres.url.render_as_string(hide_password=False)
    for options, said in (
        (["--to", "kafka://127.0.0.1:1?acks=1"], "acks="),
        (
            ["--to", "amqp://127.0.0.1:1", "--lease", "10s", "--send-timeout", "9s"],
            "--send-timeout='9s': expected",
        ),
    ):
        done = in_this_process("outbox", "relay", *options, url=url)
        assert said in error(done)
        assert done.returncode == 1


def test_status_as_a_probe(engine: Engine, run: Run) -> None:
    """With `--max-age` the exit code is 7 once a message has waited longer than that, otherwise 0, also if
    there is no message. Messages in buckets that do not exist are printed in a separate line."""
    assert succeeded(run("outbox", "status", "--max-age", "0s"))
    publish(engine, "a1", "a2")
    assert succeeded(run("outbox", "status", "--max-age", "1h"))
    late = run("outbox", "status", "--max-age", "0s", "--json")
    assert (late.returncode, json.loads(late.stdout)["pending"]) == (7, 2)
    with engine.begin() as connection:
        connection.execute(update(TABLES.message).values(bucket=64))
    assert "2 of them are in buckets that do not exist" in succeeded(run("outbox", "status"))
