"""`inbox-outbox outbox relay` and `drain`, with a real RabbitMQ and a real Kafka."""

import json
import signal
import subprocess

import pytest
from sqlalchemy import Engine, update

import outbox
from examples.embedded_postgres import free_port
from tests.operating.test_purge import WEEK, fill, left
from tests.support.brokers.kafka_topics import Topics, values
from tests.support.brokers.rabbit_queues import Queues
from tests.support.cli import error, inbox_outbox, line
from tests.support.database import Database
from tests.support.outbox_publishers import TABLES, count, dead, publish
from tests.support.processes import wait_until
from tests.support.program import ROOT, complaints
from tests.support.proxy import TcpProxy
from tests.support.roles import Right, rights, role

pytest_plugins = ["tests.support.brokers.kafka_fixtures", "tests.support.brokers.rabbit_fixtures"]

REFUSED = {"ce_specversion": "1.0", "ce_" + "x" * 120: "with RabbitMQ's prefix the name is too long"}
"""Headers of a message that is always refused."""
LIFE = ["starts:", "is", "owns", "has"]
"""The first words of the lines that a relay writes to stderr about itself."""


def test_drain(engine: Engine, postgres: Database, queues: Queues) -> None:
    """`drain` sends everything that can be sent, and ends; the report has the counts. A lease that is
    short bounds the sends, too."""
    queue = queues.new()
    publish(engine, "a1", "a2", "b1", "-1", topic=queue)
    publish(engine, "c1", topic=queue, headers=REFUSED)
    arguments = "--to", queues.url, "--keep-sent", "1h", "--lease", "5s", "--json"
    done = inbox_outbox("outbox", "drain", *arguments, url=postgres.url)
    assert done.returncode == 0
    found = json.loads(done.stdout)
    assert (found["sent"], found["refused"], found["left"]) == (4, 1, 0)
    assert "is dead after 1 attempt:" in done.stderr
    bodies = queues.bodies(queue)
    assert sorted(bodies) == ["-1", "a1", "a2", "b1"]
    assert bodies.index("a1") < bodies.index("a2")
    assert list(dead(engine)) == ["c1"]
    assert count(engine, TABLES.sent) == 4


def test_drain_leaves_what_cannot_leave(engine: Engine, postgres: Database, queues: Queues) -> None:
    """`drain` does not wait for held or paused messages: they stay, and the exit code is 4. It does wait for
    those in buckets that do not exist, which a relay takes in."""
    queue = queues.new()
    publish(engine, "s1", "t1", topic=queue)
    publish(engine, "u1", topic=queue, delay=0.001)
    with engine.begin() as connection:
        for table in (TABLES.message, TABLES.delayed):
            connection.execute(update(table).values(bucket=99))
    publish(engine, "a1", topic=queue, headers=REFUSED)
    publish(engine, "a2", "b1", topic=queue)
    publish(engine, "c1", topic="paused")
    outbox.pause(engine, "paused")
    options = "--to", queues.url, "--after-dead", "hold"
    done = inbox_outbox("outbox", "drain", *options, url=postgres.url)
    assert done.returncode == 4
    assert done.stdout.startswith("4 messages sent, 1 refused, 0 failed sends, in ")
    assert done.stdout.endswith("; 3 left\n")
    assert sorted(queues.bodies(queue)) == ["b1", "s1", "t1", "u1"]


def test_drain_gives_up(engine: Engine, postgres: Database) -> None:
    """If no broker answers, `drain` stops after its timeout, with exit code 4 and without showing a
    password."""
    publish(engine, "a1")
    to = f"amqp://guest:s3cr3t@127.0.0.1:{free_port()}"
    done = inbox_outbox("outbox", "drain", "--to", to, "--timeout", "1s", url=postgres.url)
    assert done.returncode == 4
    assert done.stdout.endswith("; 1 left\n")
    assert "s3cr3t" not in done.stdout + done.stderr
    assert count(engine, TABLES.message) == 1


def test_drain_to_kafka(postgres: Database, topics: Topics) -> None:
    """A kafka:// URL contains the servers, and client settings in its query."""
    topic = topics.new()
    publish(postgres.engine(), "a1", "a2", topic=topic)
    to = f"kafka://{topics.address}?compression.type=gzip"
    done = inbox_outbox("outbox", "drain", "--to", to, "--json", url=postgres.url)
    assert done.returncode == 0
    found = json.loads(done.stdout)
    assert (found["sent"], found["left"]) == (2, 0)
    assert values(topics.log(topic)) == ["a1", "a2"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_relay(engine: Engine, postgres: Database, queues: Queues, number: signal.Signals) -> None:
    """`relay` sends messages to the broker as they are published, and purges the inbox if it is asked to. On
    a signal it ends cleanly, and its buckets are free immediately."""
    queue = queues.new()
    keys = fill(engine, [2 * WEEK, WEEK / 7])
    options = "--to", queues.url, "--name", "one", "--poll", "1s", "--purge-every", "1h30m"
    command = line("outbox", "relay", *options, url=postgres.url)
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        publish(engine, "a1", topic=queue)
        wait_until(lambda: queues.count(queue) == 1)
        publish(engine, "a2", topic=queue)
        wait_until(lambda: queues.count(queue) == 2)
        assert [each.name for each in outbox.status(engine).relays] == ["one"]
        wait_until(lambda: left(engine) == keys[1:])
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0
    said = [each for each in complaints(err).splitlines() if " INFO purged 1 message in " not in each]
    assert [each.split(" relay one ")[1].split()[0] for each in said] == LIFE
    assert out.startswith("2 messages sent, 0 refused")
    assert out.endswith("1 message of the inbox deleted, 0 failed purges\n")
    assert outbox.status(engine).relays == ()
    assert queues.bodies(queue) == ["a1", "a2"]


def test_a_relay_without_the_rights_to_purge(postgres: Database, engine: Engine) -> None:
    """It is refused before it sends anything."""
    with role(postgres) as app:
        for right in rights("postgresql", "relay"):
            app.grant(right)
        options = "--to", f"amqp://guest@127.0.0.1:{free_port()}", "--purge-every", "1h"
        done = inbox_outbox("outbox", "relay", *options, url=app.database.url)
        assert "permission denied for table inbox_" in error(done)
        for right in rights("postgresql", "purge"):
            if right != Right("DELETE", "inbox_status"):
                app.grant(right)
        done = inbox_outbox("outbox", "relay", *options, url=app.database.url)
        assert "permission denied for table inbox_status" in error(done)


@pytest.mark.long(but_on="relay")
@pytest.mark.parametrize("command", ["relay", "drain"])
def test_told_to_end_while_the_database_is_away(engine: Engine, postgres: Database, command: str) -> None:
    """On SIGTERM while the database does not answer, `relay` ends with exit code 0, and `drain` with 4, which
    says that messages may be left."""
    to = f"amqp://guest@127.0.0.1:{free_port()}"
    publish(engine, "a1")
    with TcpProxy(str(postgres.url.host), postgres.url.port or 0) as proxy:
        url = postgres.url.set(host="127.0.0.1", port=proxy.port)
        arguments = line("outbox", command, "--to", to, url=url)
        process = subprocess.Popen(
            arguments, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            wait_until(lambda: outbox.status(engine).relays)
        except BaseException:
            process.kill()
            raise
    try:
        assert process.stderr is not None
        said = ""
        while "does not answer" not in said:
            said = process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == (0 if command == "relay" else 4)
    assert ("an unknown number left" in out) is (command == "drain")
