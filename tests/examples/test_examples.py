"""The examples do what their docstrings say."""

import asyncio
from collections.abc import Awaitable, Callable
from itertools import product

import pytest
from httpx import ASGITransport, AsyncClient, Response
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from examples._common import CONSUMER
from examples.inbox_fastapi import make_app, metadata, orders
from inbox import AsyncInbox
from tests.support.database import Database
from tests.support.forked import run_module
from tests.support.on_servers import on
from tests.support.program import complaints

pytestmark = pytest.mark.quick("postgresql", "sqlite")

Post = Callable[..., Awaitable[Response]]
Scenario = Callable[[AsyncEngine, Post], Awaitable[None]]

OUTPUT = {
    "naive_select_then_act": [
        "two deliveries of payment-1: acted, acted",
        "balance: 200, expected: 100",
    ],
    "naive_select_for_update": [
        "no row to lock, two deliveries: charged, charged",
        "charged: 200, expected: 100",
        "a row to lock, two deliveries: charged, seen before",
        "meanwhile an unrelated change of the order has to wait: yes",
    ],
    "inbox_context_manager": [
        "payment-1: new, result {'balance': 100}",
        "payment-1: duplicate, result {'balance': 100}",
        "payment-2, while it is being taken: in_flight, to be delivered again",
        "balance: 100, expected: 100",
    ],
    "inbox_decorator": [
        "payment-1 over 100: new, result {'balance': 100}",
        "payment-1 over 100: duplicate, result {'balance': 100}",
        "payment-1 over 999: mismatch",
        "balance: 100, expected: 100",
    ],
    "inbox_listener": [
        "payment-1 over 100: ack, new",
        "payment-1 over 100: ack, duplicate",
        "payment-2 over 50: retry, LookupError: no account: bob",
        "payment-1 over 999: retry, behind a message that was not acknowledged",
        "payment-3 over 5: retry, behind a message that was not acknowledged",
        "acknowledged: 2 of 5",
        "dead letter: payment-1 over 999, mismatch",
        "payment-2 over 50: ack, new",
        "payment-1 over 999: ack, stored as a dead letter: mismatch",
        "payment-3 over 5: ack, new",
        "acknowledged: 3 of 3",
        "alice: 105",
        "bob: 50",
    ],
    "inbox_orm_session": [
        "payment-1: new, result 100",
        "payment-1: duplicate, result 100",
        "balance: 100, expected: 100",
    ],
}


@pytest.mark.parametrize(
    ("server", "example"),
    [
        *(("sqlite", example) for example in OUTPUT if example != "naive_select_for_update"),
        *product(["postgresql", "mariadb", "mysql"], ["naive_select_for_update", "inbox_context_manager"]),
    ],
    indirect=["server"],
)
def test_an_example_prints_what_it_shows(example: str, database: Database) -> None:
    """The naive examples count one message twice; the inbox counts it once."""
    done = run_module(f"examples.{example}", url=database.url)
    assert (done.returncode, complaints(done.stderr)) == (0, "")
    assert done.stdout.splitlines() == OUTPUT[example]


@on("sqlite")
def test_an_example_can_run_again(database: Database) -> None:
    """What one run leaves behind does not change the next one."""
    for _ in range(2):
        done = run_module("examples.inbox_decorator", url=database.url)
        assert done.stdout.splitlines() == OUTPUT["inbox_decorator"]


def test_an_example_brings_its_own_database() -> None:
    """Without --url an example runs on the embedded PostgreSQL."""
    done = run_module("examples.inbox_context_manager")
    assert done.stdout.splitlines() == OUTPUT["inbox_context_manager"]


def test_an_example_keeps_a_wrong_url_to_itself() -> None:
    """An invalid URL is not repeated in the output: it may contain a password."""
    done = run_module("examples.inbox_decorator", "--url", "postgresql:secret")
    assert done.returncode == 2
    assert "secret" not in done.stdout + done.stderr


def test_for_update_is_refused_on_sqlite(tmp_path_factory: pytest.TempPathFactory) -> None:
    """On SQLite, where a lock clause has no effect, the example says so and stops."""
    file = tmp_path_factory.mktemp("sqlite") / "example.db"
    done = run_module("examples.naive_select_for_update", "--url", f"sqlite:///{file}")
    assert done.returncode == 1
    assert "SQLite has no row locks" in done.stderr


@on("postgresql", "sqlite")
def test_the_idempotent_post_prints_what_it_shows(database: Database) -> None:
    """Three simultaneous requests with the same key create one order and get the same answer."""
    done = run_module("examples.inbox_fastapi", url=database.url)
    assert done.returncode == 0, done.stderr
    *answers, reused, running, count = done.stdout.splitlines()
    assert len(answers) == 3
    assert len(set(answers)) == 1
    assert answers[0].startswith("key-1, tea: 201 ")
    assert [reused, running, count] == [
        "key-1, coffee: 422",
        "key-2, while it is running: 409, Retry-After 1",
        "orders: 1, expected: 1",
    ]


def test_simultaneous_requests_with_one_key_make_one_order(migrated: Database) -> None:
    """If several requests with the same key arrive at the same time, only one runs, and all of them get its
    answer."""

    async def scenario(engine: AsyncEngine, post: Post) -> None:
        answers = await asyncio.gather(*(post("key") for _ in range(8)))
        assert [answer.status_code for answer in answers] == [201] * 8
        assert len({answer.text for answer in answers}) == 1
        assert sum("Idempotent-Replayed" not in answer.headers for answer in answers) == 1
        assert await count_orders(engine) == 1

    serve(migrated, scenario)


def test_a_reused_key_is_refused(sqlite: Database) -> None:
    """The same key with another body is rejected with 422, and creates no order."""

    async def scenario(engine: AsyncEngine, post: Post) -> None:
        assert (await post("key", item="tea")).status_code == 201
        assert (await post("key", item="coffee")).status_code == 422
        assert (await post("other key", item="coffee")).status_code == 201
        assert await count_orders(engine) == 2

    serve(sqlite, scenario)


def test_a_running_request_is_not_run_again(sqlite: Database) -> None:
    """While the first request runs, a second one gets 409 and Retry-After. If the first one fails, the second
    may run."""

    async def scenario(engine: AsyncEngine, post: Post) -> None:
        async with engine.connect() as first:
            await AsyncInbox(CONSUMER).accept(first, "key")
            answer = await post("key")
            assert answer.status_code == 409
            assert answer.headers["Retry-After"] == "1"
            await first.rollback()
        assert (await post("key")).status_code == 201
        assert await count_orders(engine) == 1

    serve(sqlite, scenario, wait=0)


def test_an_invalid_key_is_a_bad_request(sqlite: Database) -> None:
    """An invalid key is rejected with 400."""

    async def scenario(engine: AsyncEngine, post: Post) -> None:
        for key in ("", "x" * 513):
            assert (await post(key)).status_code == 400
        assert await count_orders(engine) == 0

    serve(sqlite, scenario)


def serve(database: Database, scenario: Scenario, *, wait: float = 20) -> None:
    """Run a scenario against the service on this database."""

    async def with_client() -> None:
        engine = create_async_engine(database.async_url)
        async with engine.begin() as connection:
            await connection.run_sync(metadata.create_all)
        transport = ASGITransport(make_app(engine, wait=wait))
        async with AsyncClient(transport=transport, base_url="http://test") as client:

            async def post(key: str, item: str = "tea") -> Response:
                body, headers = {"item": item, "quantity": 1}, {"Idempotency-Key": key}
                return await client.post("/orders", json=body, headers=headers)

            await scenario(engine, post)
        await engine.dispose()

    asyncio.run(with_client())


async def count_orders(engine: AsyncEngine) -> int:
    async with engine.connect() as connection:
        return await connection.scalar(select(func.count()).select_from(orders)) or 0
