"""The inbox behind an idempotent POST: a client may repeat a request until it gets an answer.

The client generates an ``Idempotency-Key`` for each operation and repeats it with each try. The same key and
body get the stored answer (201, with ``Idempotent-Replayed: true``), the same key with another body gets 422,
and a key whose first request is still running gets 409 with ``Retry-After``. (Status codes as in the IETF
draft "The Idempotency-Key HTTP Header Field".) If clients log in, make the client part of the key:
``(client, idempotency_key)``.

The endpoint keeps its own session: `take` writes the key and the answer in that transaction. It commits
before it answers, since a dependency may be closed only after the answer was sent.

    python -m examples.inbox_fastapi [--url URL]
"""

import asyncio
from collections.abc import AsyncIterator
from secrets import token_hex
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Header, HTTPException, Request, Response
from fastapi.responses import JSONResponse
from httpx import ASGITransport, AsyncClient
from httpx import Response as HttpxResponse
from pydantic import BaseModel
from sqlalchemy import URL, Column, Integer, MetaData, String, Table, func, insert, select
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine

from examples._common import CONSUMER, prepared
from inbox import AsyncInbox, Verdict
from inbox.errors import InvalidKey

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


def make_app(engine: AsyncEngine, *, wait: float = 5) -> FastAPI:
    """The service; a request waits up to `wait` seconds for another one with the same key."""
    app = FastAPI()
    inbox = AsyncInbox(CONSUMER, wait=wait)
    sessions = async_sessionmaker(engine)

    async def get_session() -> AsyncIterator[AsyncSession]:
        async with sessions() as session:
            yield session

    @app.post("/orders", status_code=201)
    async def create(
        order: Order,
        response: Response,
        idempotency_key: Annotated[str, Header()],
        session: Annotated[AsyncSession, Depends(get_session)],
    ) -> dict[str, Any]:
        taken = await inbox.take(session, idempotency_key, order.model_dump())
        match taken.verdict:
            case Verdict.NEW:
                taken.result = {"number": token_hex(4), **order.model_dump()}
                await session.execute(insert(orders).values(taken.result))
                await session.commit()  # the key, the order and the answer: all or nothing
            case Verdict.DUPLICATE:
                response.headers["Idempotent-Replayed"] = "true"
            case Verdict.MISMATCH:
                raise HTTPException(422, "this key was used for another order")
            case _:
                raise HTTPException(409, "the first request is still running", {"Retry-After": "1"})
        answer: dict[str, Any] = taken.result
        return answer

    @app.exception_handler(InvalidKey)
    async def refuse(request: Request, error: InvalidKey) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, status_code=400)

    return app


async def requests(engine: AsyncEngine) -> None:
    """What a client sees: a request sent three times concurrently, a reused key, and one still running."""
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
