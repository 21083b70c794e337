"""The inbox behind an idempotent POST: a client may repeat a request until it gets an answer.

The client draws an ``Idempotency-Key`` for each thing it wants done and repeats it with each try. The
same key and body get the stored answer (201, with ``Idempotent-Replayed: true``), the same key with
another body 422, and a key whose first request is still running 409 with ``Retry-After``. (Status codes
as in the IETF draft "The Idempotency-Key HTTP Header Field".) Where clients log in, make the client a
part of the key: ``key=(client, idempotency_key)``.

    python -m examples.inbox_fastapi [--url URL]
"""

import asyncio
from dataclasses import dataclass
from operator import attrgetter
from secrets import token_hex
from typing import Annotated, Any

from fastapi import FastAPI, Header, HTTPException, Request, Response
from fastapi.responses import JSONResponse
from httpx import ASGITransport, AsyncClient
from httpx import Response as HttpxResponse
from pydantic import BaseModel
from sqlalchemy import URL, Column, Integer, MetaData, String, Table, func, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from examples._common import CONSUMER, prepared
from inbox import AsyncInbox, Verdict
from inbox.errors import InvalidKey, MessageInFlight, PayloadMismatch

ASYNC_DRIVERS = {"mysql": "asyncmy", "mariadb": "asyncmy", "sqlite": "aiosqlite"}

metadata = MetaData()
orders = Table(
    "example_order",
    metadata,
    Column("number", String(8), primary_key=True),
    Column("item", String(50), nullable=False),
    Column("quantity", Integer, nullable=False),
)


class Order(BaseModel):
    """What a client orders."""

    item: str
    quantity: int


@dataclass(frozen=True)
class Placing:
    """A client's wish to order, with the key that it drew for it."""

    key: str
    order: dict[str, Any]


def make_app(engine: AsyncEngine, *, wait: float = 5) -> FastAPI:
    """The service; a request waits up to `wait` seconds for another one with the same key."""
    app = FastAPI()
    inbox = AsyncInbox(CONSUMER, wait=wait)

    @inbox.handler(engine, key=attrgetter("key"), payload=attrgetter("order"))
    async def place(connection: AsyncConnection, request: Placing) -> dict[str, Any]:
        order = {"number": token_hex(4), **request.order}
        await connection.execute(insert(orders).values(order))
        return order

    @app.post("/orders", status_code=201)
    async def create(
        order: Order, response: Response, idempotency_key: Annotated[str, Header()]
    ) -> dict[str, Any]:
        try:
            outcome = await place(Placing(idempotency_key, order.model_dump()))
        except PayloadMismatch:
            raise HTTPException(422, "this key was used for another order") from None
        except MessageInFlight:
            raise HTTPException(409, "the first request is still running", {"Retry-After": "1"}) from None
        if outcome.verdict is Verdict.DUPLICATE:
            response.headers["Idempotent-Replayed"] = "true"
        answer: dict[str, Any] = outcome.result
        return answer

    @app.exception_handler(InvalidKey)
    async def refuse(request: Request, error: InvalidKey) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, status_code=400)

    return app


async def requests(engine: AsyncEngine) -> None:
    """What a client sees: a request sent three times at once, a reused key, and one still running."""
    transport = ASGITransport(make_app(engine))
    async with AsyncClient(transport=transport, base_url="http://example") as client:

        async def post(key: str, item: str) -> HttpxResponse:
            body, headers = {"item": item, "quantity": 1}, {"Idempotency-Key": key}
            return await client.post("/orders", json=body, headers=headers)

        for answer in await asyncio.gather(*(post("key-1", "tea") for _ in range(3))):
            print(f"key-1, tea: {answer.status_code} {answer.json()}")
        print(f"key-1, coffee: {(await post('key-1', 'coffee')).status_code}")
        async with AsyncInbox(CONSUMER).transaction(engine, key="key-2"):
            impatient = ASGITransport(make_app(engine, wait=0))
            async with AsyncClient(transport=impatient, base_url="http://example") as client:
                running = await post("key-2", "tea")
        wait = running.headers["Retry-After"]
        print(f"key-2, while it is running: {running.status_code}, Retry-After {wait}")
    async with engine.connect() as connection:
        print(f"orders: {await connection.scalar(select(func.count()).select_from(orders))}, expected: 1")


def async_url(url: URL) -> URL:
    """The same database through an asynchronous driver (psycopg is one already)."""
    name = url.get_backend_name()
    return url.set(drivername=f"{name}+{ASYNC_DRIVERS[name]}") if name in ASYNC_DRIVERS else url


async def run(url: URL) -> None:
    engine = create_async_engine(async_url(url))
    try:
        await requests(engine)
    finally:
        await engine.dispose()


def main() -> None:
    with prepared(__doc__, metadata) as engine:
        asyncio.run(run(engine.url))


if __name__ == "__main__":
    main()
