"""The code of docs/frameworks.md runs where the frameworks are, and its recipes do what the page says."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import Engine, text

from inbox import Inbox
from tests.support.brokers.kafka_topics import Topics
from tests.support.brokers.rabbit_queues import Queues
from tests.support.database import Database
from tests.support.documented_code import blocks, reader
from tests.support.processes import wait_until
from tests.support.program import ROOT

pytest_plugins = ["tests.support.brokers.kafka_fixtures", "tests.support.brokers.rabbit_fixtures"]

PAGE = ROOT / "docs" / "frameworks.md"
NAMES = ("aiokafka", "celery", "django", "dramatiq", "faststream", "flask_sqlalchemy", "taskiq")
for _name in NAMES:
    pytest.importorskip(_name, reason=f"{_name} is not installed here: make frameworks")

OWN = "import AioPikaBroker, Queue, QueueType"
Page = Callable[..., dict[str, Any]]


@pytest.fixture
def engine(postgres: Database) -> Engine:
    """An engine of a database with the page's table."""
    engine = postgres.engine()
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE invoice (id TEXT, cents INTEGER)"))
    return engine


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, postgres: Database) -> Page:
    """Runs the page's blocks up to the one that imports a module, with other addresses, and returns the names
    that they leave."""

    def run(module: str, **addresses: str) -> dict[str, Any]:
        monkeypatch.chdir(tmp_path)
        names = reader(tmp_path)
        url = postgres.url.render_as_string(hide_password=False)
        places = {"postgresql+psycopg://host/shop": url, **addresses}
        for block in blocks(PAGE):
            block.run(names, "frameworks", places)
            if f"from {module} import" in block.code:
                return names
        return names

    return run


def billed(engine: Engine) -> list[str]:
    """The orders that were billed."""
    with engine.connect() as connection:
        return list(connection.scalars(text("SELECT id FROM invoice ORDER BY id")))


def test_the_code_of_the_page_runs(page: Page) -> None:
    """Each block runs after the blocks before it. They connect to nothing."""
    assert page("no module")


def test_a_request_of_flask_takes_effect_once(page: Page, engine: Engine) -> None:
    """Sent again it changes nothing; with another body it is refused; in flight it is a conflict."""
    client = page("flask")["web"].test_client()

    def post(key: str, number: str) -> int:
        sent = client.post("/orders", json={"id": number, "cents": 5}, headers={"Idempotency-Key": key})
        return int(sent.status_code)

    assert [post("a", "1"), post("a", "1"), post("a", "2"), post("b", "2")] == [201, 200, 422, 201]
    assert billed(engine) == ["1", "2"]
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT count(*) FROM outbox_message")) == 2


def test_an_actor_of_dramatiq_loses_nothing(
    page: Page, engine: Engine, queues: Queues, caplog: pytest.LogCaptureFixture
) -> None:
    """A message in flight is retried until it is taken, and duplicates are acknowledged."""
    name = queues.new()
    queues.do(lambda channel: channel.queue_delete(name))  # Dramatiq makes its own
    names = page("dramatiq.brokers.rabbitmq", **{"amqp://rabbitmq/": queues.url, '"orders"': f'"{name}"'})
    caplog.set_level("INFO", "dramatiq")
    worker = names["dramatiq"].Worker(names["rabbitmq"], worker_threads=2, worker_timeout=100)
    with engine.connect() as other:
        assert Inbox("billing").accept(other, "held")
        for number in ("1", "1", "held", "2"):
            names["bill_order"].send({"id": number, "cents": 5})
        worker.start()
        try:
            wait_until(lambda: "Retrying message" in caplog.text and len(billed(engine)) == 2)
            other.rollback()
            wait_until(lambda: len(billed(engine)) == 3)
        finally:
            worker.stop()
            names["rabbitmq"].close()
    for each in (name, f"{name}.DQ", f"{name}.XQ"):
        queues.do(lambda channel, each=each: channel.queue_delete(each))  # type: ignore[misc]
    assert billed(engine) == ["1", "2", "held"]


def test_a_task_of_taskiq_loses_nothing(page: Page, engine: Engine, queues: Queues) -> None:
    """A message in flight stays with RabbitMQ until it is taken, also if its worker ends before that, and
    duplicates are acknowledged."""
    name = queues.new()
    queues.do(lambda channel: channel.queue_delete(name))  # taskiq makes its own
    receive = pytest.importorskip("taskiq.api").run_receiver_task
    # The test's server has one node only, so no quorum.
    own = f'Queue(name="{name}", type=QueueType.CLASSIC, durable=False)'
    named = {"amqp://rabbitmq/": queues.url, 'Queue(name="orders")': own, "import AioPikaBroker, Queue": OWN}

    async def run() -> None:
        for ends_early in (True, False):
            names = page("taskiq_aio_pika", **named)
            broker = names["broker"]
            broker.is_worker_process = True
            await broker.startup()
            if ends_early:
                for number in ("1", "1", "held", "2"):
                    await names["bill_order"].kiq({"id": number, "cents": 5})
            working = asyncio.create_task(receive(broker))
            await asyncio.to_thread(wait_until, lambda: len(billed(engine)) == 2)
            if not ends_early:
                other.rollback()
                await asyncio.to_thread(wait_until, lambda: len(billed(engine)) == 3)
            working.cancel()
            await asyncio.wait([working])
            await broker.shutdown()

    with engine.connect() as other:
        assert Inbox("billing").accept(other, "held")
        asyncio.run(run())
    queues.do(lambda channel: channel.queue_delete(name))
    assert billed(engine) == ["1", "2", "held"]


def test_a_consumer_of_aiokafka_commits_what_is_done(page: Page, engine: Engine, topics: Topics) -> None:
    """A message in flight holds back the offset of its partition until it is taken."""
    topic, group = topics.new(), f"group-{uuid4()}"
    for key in ("1", "held", "1", "2"):
        topics.put(topic, "", key=key)
    names = page("aiokafka", **{"kafka:9092": topics.address})

    async def run() -> None:
        consuming = asyncio.create_task(names["consume"](topic, group))
        await asyncio.to_thread(wait_until, lambda: topics.committed(group, topic) == {0: 1})
        other.rollback()
        await asyncio.to_thread(wait_until, lambda: topics.committed(group, topic) == {0: 4})
        names["listener"].stop()
        await consuming

    with engine.connect() as other:
        assert Inbox("billing").accept(other, "held")
        asyncio.run(run())
    assert billed(engine) == ["1", "2", "held"]
