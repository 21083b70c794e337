"""The order chain keeps its promises no matter which process is killed, without a broker and with each
broker."""

import signal
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, inspect, select, update

from examples._outbox import waiting
from examples.embedded_postgres import free_port
from examples.order_chain import report, trial
from examples.order_chain.crew import Heard
from examples.order_chain.hooks import Hooks
from examples.order_chain.kafka import Kafka
from examples.order_chain.nats import Nats
from examples.order_chain.plan import Plan
from examples.order_chain.rabbit import Rabbit
from examples.order_chain.redis_streams import RedisStreams
from examples.order_chain.rocket import Rocket
from examples.order_chain.shop import INVENTORY, Order
from examples.order_chain.sqs import SQS
from examples.order_chain.steps import publish, steps
from examples.order_chain.transport import Brokered, Direct, Transport
from examples.order_chain.trial import Result
from examples.order_flow.processes import PATIENCE, Child, service
from examples.order_flow.remote import Remote
from examples.order_flow.services import NOWHERE
from inbox import Backoff
from inbox.schema import tables
from outbox import DirectDelivery, Relay
from outbox.schema import tables as outbox_tables
from tests.examples.test_demo import interrupted, table, until
from tests.servers import Service
from tests.servers.kafka import LocalKafka
from tests.servers.rabbitmq import LocalRabbit
from tests.support.database import Database
from tests.support.program import ROOT, command, complaints, run
from tests.support.relay import order_chain_crash

pytest_plugins = [
    "tests.support.brokers.rabbit_fixtures",
    "tests.support.brokers.kafka_fixtures",
    "tests.support.brokers.nats_fixtures",
    "tests.support.brokers.rocketmq_fixtures",
    "tests.support.brokers.sqs_fixtures",
]

PLAN = Plan(orders=12, kills=6)
ONE = Plan(orders=1, kills=1)
MANY = 200
"""More statements than an order takes."""
RIGHT = Result(
    orders=[*ONE.statuses.items()],
    sold=ONE.sold,
    shipments={"order-1": 1},
    calls=2,
    dead=0,
    heard=Heard(),
    killed=Counter(relay=1),
    seconds=1,
)
"""Of ONE order, with a call that was made twice."""
BY_ID = """
import sys

from examples.order_chain import __main__, steps
from inbox import message_id

steps.message_key = message_id
if __name__ == "__main__":
    sys.exit(__main__.main(sys.argv[1:]))
"""


@pytest.fixture(
    params=[
        "direct",
        "rabbitmq",
        pytest.param("kafka", marks=pytest.mark.long),
        pytest.param("nats", marks=pytest.mark.long),
        pytest.param("redis", marks=pytest.mark.long),
        pytest.param("rocketmq", marks=pytest.mark.long),
        pytest.param("elasticmq", marks=pytest.mark.long),
        pytest.param("webhook", marks=pytest.mark.long),
    ]
)
def transport(request: pytest.FixtureRequest) -> Transport:
    """Each way to pass messages between the steps. A broker is killed like the other processes."""
    if request.param == "direct":
        return Direct()
    if request.param == "webhook":
        return Brokered("webhooks", Hooks())
    server = request.getfixturevalue(f"private_{request.param}")
    if request.param == "kafka":
        return Brokered("Kafka", Kafka(server.address), server.restart)
    if request.param == "nats":
        return Brokered("NATS", Nats(server.url), server.restart)
    if request.param == "rocketmq":
        return Brokered("RocketMQ", Rocket(server.address, server.broker), server.restart)
    if request.param == "redis":
        return Brokered("Redis", RedisStreams(server.url), server.restart)
    if request.param == "elasticmq":
        return Brokered("SQS", SQS(server.url), server.restart)
    return Brokered("RabbitMQ", Rabbit(server.url), server.restart)


@pytest.fixture
def engine(postgres: Database) -> Engine:
    """A database with the tables and a fully stocked shop."""
    found = postgres.engine()
    trial.reset(found)
    return found


@pytest.fixture
def remote() -> Iterator[Remote]:
    """The downstream system, in a separate process."""
    with service() as found:
        yield found


@pytest.mark.long(but_on="direct")
def test_the_orders_are_right_after_kills(postgres: Database, transport: Transport) -> None:
    """Customers, relays and consumers are killed on the way. Each order is one row with the right status, the
    stock is reduced by the confirmed orders only, each confirmed order is shipped once, and nothing is left
    of rolled-back orders."""
    with transport.opened():
        result = trial.run(postgres.engine(), transport, PLAN, lambda _: None)
    refused = {"order-6", "order-12"}
    numbers = {f"order-{number}" for number in range(1, 13)}
    statuses = {number: "refused" if number in refused else "confirmed" for number in numbers}
    assert sorted(result.orders) == sorted(statuses.items())
    assert result.shipments == dict.fromkeys(numbers - refused, 1)
    sold = Counter[str]()
    for request in PLAN.requests:
        if request.order.number in numbers - refused:
            sold[request.order.item] += request.order.quantity
    assert Counter(result.sold) == sold
    assert result.dead == 0
    assert result.killed.total() == PLAN.kills
    assert result.heard.verdicts["duplicate"] >= 3, "three orders are sent twice"
    assert all(result.promises(PLAN).values())


@pytest.mark.long
@pytest.mark.parametrize("step", [6, 1])
def test_a_relay_that_is_killed_at_any_statement_costs_nothing(
    engine: Engine, remote: Remote, step: int
) -> None:
    """A relay is killed with kill -9 just before each statement that an order needs (in the quick run, before
    every sixth), the relay's own statements included. Another relay brings each order to its right end. A
    downstream call may be repeated, with the same idempotency key."""
    last, numbers = 1, ["order-1"]
    while last < MANY and is_killed(engine, remote, numbers[-1], last):
        last += step
        let_leases_end(engine)
        until(lambda: relayed(engine, remote) == 0 and waiting(engine) == 0, "something is left")
        numbers.append(f"order-{len(numbers) + 1}")
    assert 40 < last < MANY, "the number of statements that an order takes"
    assert sorted(trial.rows(engine)) == sorted((number, "confirmed") for number in numbers)
    assert trial.sold(engine)["tea"] == 3 * len(numbers)
    assert remote.state()["kept"] == dict.fromkeys(numbers, 1)
    assert trial.dead(engine) == 0


def test_an_order_that_is_sent_again_is_taken_once(engine: Engine, remote: Remote) -> None:
    """Two messages with different ids but the same key pass through the chain as one order."""
    order = Order("order-1", "tea", 3, "somewhere")
    for _ in range(2):
        send(engine, order)
    assert relayed(engine, remote) == 5, "two requests, and one message for each of the three steps behind"
    assert trial.rows(engine) == [("order-1", "confirmed")]
    assert trial.sold(engine) == {"tea": 3, "coffee": 0, "milk": 0}
    assert remote.state() == {"calls": {"ship order-1": 1}, "kept": {"order-1": 1}}


def test_the_stock_of_a_refused_order_is_given_back(engine: Engine, remote: Remote) -> None:
    """An order that cannot be shipped takes nothing from the stock."""
    send(engine, Order("order-1", "tea", 3, NOWHERE))
    assert relayed(engine, remote) == 5
    assert trial.rows(engine) == [("order-1", "refused")]
    assert trial.sold(engine) == {"tea": 0, "coffee": 0, "milk": 0}
    assert remote.state() == {"calls": {"ship order-1": 1}, "kept": {}}


def test_a_step_that_fails_leaves_nothing_and_is_not_skipped(engine: Engine, remote: Remote) -> None:
    """When the downstream system does not answer, the chain stops there. When it answers again, the chain
    continues from that step and does not repeat earlier ones."""
    send(engine, Order("order-1", "tea", 3, "somewhere"))
    assert relayed(engine, Remote(free_port())) == 2
    assert trial.rows(engine) == [("order-1", "new")]
    until(lambda: relayed(engine, remote) > 0, "the message did not come again")
    assert trial.rows(engine) == [("order-1", "confirmed")]
    assert trial.sold(engine)["tea"] == 3


def test_a_plan_is_the_same_each_time() -> None:
    """The seed determines what is ordered and when processes are killed. The plan contains each kind of
    order."""
    assert (PLAN.requests, PLAN.moments) == (Plan(12, 6).requests, Plan(12, 6).moments)
    assert PLAN.requests != Plan(12, 6, seed=1).requests
    assert [sum(each.is_withdrawn for each in PLAN.requests), len(PLAN.moments)] == [2, 6]
    assert sum(each.times == 2 for each in PLAN.requests) == 3
    assert Counter(PLAN.statuses.values()) == {"confirmed": 10, "refused": 2}


@pytest.mark.long
def test_it_runs_as_a_program(postgres: Database, rabbitmq: Service) -> None:
    """The program prints a table for both transports, says that all promises were kept, and leaves nothing
    behind."""
    arguments = ["--orders", "10", "--kills", "4", "--broker", rabbitmq.url]
    done = run(command("examples.order_chain", *arguments, url=postgres.url))
    assert (done.returncode, complaints(done.stderr)) == (0, ""), done.stdout
    assert "Every promise was kept." in done.stdout
    rows = table(done.stdout)
    assert rows["rows of orders"] == rows["orders with the right status"] == [10, 10, 10]
    assert rows["shipments"] == [9, 9, 9]
    assert min(rows["duplicates rejected"]) >= 2
    assert_nothing_left(postgres.engine())
    assert Rabbit(rabbitmq.url).waiting() == 0


@pytest.mark.long
def test_it_starts_and_kills_brokers(
    postgres: Database, private_rabbitmq: LocalRabbit, private_kafka: LocalKafka
) -> None:
    """Brokers given by name are started, killed like the other processes, and removed."""
    arguments = ["--orders", "10", "--kills", "24", "--broker", "kafka", "--broker", "rabbitmq"]
    done = run(command("examples.order_chain", *arguments, url=postgres.url))
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert "Every promise was kept." in done.stdout
    assert min(table(done.stdout)["brokers killed"]) >= 1


@pytest.mark.long
def test_it_can_be_interrupted(postgres: Database) -> None:
    """Ctrl-C ends the program without a traceback, and removes what it created."""
    engine = postgres.engine(isolation_level="AUTOCOMMIT")

    def has_begun() -> bool:
        return inspect(engine).has_table("example_order") and trial.rows(engine) != []

    interrupted(has_begun, "examples.order_chain", url=postgres.url)
    assert_nothing_left(engine)


@pytest.mark.long
def test_it_can_fail(postgres: Database, tmp_path: Path) -> None:
    """With inboxes that use the message's id as key, an order that was sent twice takes effect twice, and the
    program says so."""
    script = tmp_path / "by_id.py"
    script.write_text(f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{BY_ID}")
    url = postgres.url.render_as_string(hide_password=False)
    arguments = ["--orders", "4", "--kills", "1", "--url", url]
    done = run([sys.executable, str(script), *arguments])
    assert done.returncode == 1, done.stdout + done.stderr
    assert "BROKEN: no broker: each order is one row with the right status, and no other is" in done.stdout
    assert table(done.stdout)["rows of orders"] == [4, 5]


@pytest.mark.parametrize(
    "change",
    [
        {"orders": [("order-1", "confirmed")] * 2},
        {"orders": [("order-1", "new")]},
        {"orders": [("order-1", "confirmed"), ("withdrawn-0", "confirmed")]},
        {"sold": dict.fromkeys(ONE.sold, 0)},
        {"shipments": {}},
        {"shipments": {"order-1": 2}},
        {"dead": 1},
    ],
)
def test_every_promise_can_be_broken(change: dict[str, Any]) -> None:
    """A result with a single error breaks exactly one promise."""
    assert report.broken(ONE, {"direct": RIGHT}) == []
    assert len(report.broken(ONE, {"direct": replace(RIGHT, **change)})) == 1


@pytest.mark.long
def test_it_says_why_it_cannot_run(postgres: Database) -> None:
    """If the program cannot run, it prints one reason, without a traceback or password, and exits with its
    own code."""
    broker = f"amqp://guest:secret@127.0.0.1:{free_port()}/"
    for wrong in (broker, "amqp:secret", "http://guest:secret@127.0.0.1/"):
        done = run(command("examples.order_chain", "--orders", "1", "--broker", wrong, url=postgres.url))
        assert (done.returncode, done.stderr) == (2, ""), done.stdout
        assert "The order chain could not run: " in done.stdout
        assert "secret" not in done.stdout


def send(engine: Engine, order: Order) -> None:
    """Publish an order, as a customer does."""
    with engine.begin() as connection:
        publish(connection, INVENTORY, order)


def is_killed(engine: Engine, remote: Remote, number: str, last: int) -> bool:
    """Let another process send an order and relay it, and die before its statement number `last`. False if it
    does not get that far."""
    order = Order(number, "tea", 3, "somewhere")
    child = Child.start(order_chain_crash.main, engine.url, remote, order, last)
    child.process.join(PATIENCE)
    child.pipe.close()
    assert child.process.exitcode in (0, -signal.SIGKILL)
    return child.process.exitcode != 0


def let_leases_end(engine: Engine) -> None:
    """Let the leases of relays and of downstream calls expire."""
    past = datetime.now(UTC) - timedelta(minutes=1)
    with engine.begin() as connection:
        for table in (outbox_tables().relay, tables().status):
            connection.execute(update(table).where(table.c.lease_until.is_not(None)).values(lease_until=past))


def relayed(engine: Engine, remote: Remote) -> int:
    """Run the steps with a relay in this process until no more messages are due. Returns how many it
    relayed."""
    return Relay(engine, DirectDelivery(steps(engine, remote)), backoff=Backoff(0.01)).run_once()


def assert_nothing_left(engine: Engine) -> None:
    """The shop's tables are dropped, and the chain's rows in the inbox and outbox tables are deleted."""
    assert not [name for name in inspect(engine).get_table_names() if name.startswith("example_")]
    found, sent = tables(), outbox_tables()
    with engine.connect() as connection:
        for each in (found.message, found.status, sent.message, sent.dead):
            assert not connection.execute(select(each)).all()
