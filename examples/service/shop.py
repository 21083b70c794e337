"""POST /orders: the client may repeat it, the order is stored once, and its event leaves once."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any
from uuid import uuid4

from fastapi import Depends, FastAPI, Header, HTTPException, Request, Response
from pydantic import BaseModel
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from examples.service.models import BROKER, DATABASE, TOPIC, Order
from inbox import AsyncInbox, Verdict, is_transient
from outbox import AsyncRelay, Outbox
from outbox.rabbitmq import AsyncRabbitPublisher

engine = create_async_engine(DATABASE)
sessions = async_sessionmaker(engine)
requests = AsyncInbox("shop.requests")
outbox = Outbox()


class NewOrder(BaseModel):
    """The body of the request."""

    item: str
    cents: int


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """While the service runs, a relay sends its messages. `inbox-outbox outbox relay` is one in a process of
    its own; both may run at the same time."""
    publisher = AsyncRabbitPublisher(BROKER)
    relay = AsyncRelay(engine, publisher)
    await relay.run_once()  # raises if the tables are missing
    running = asyncio.create_task(relay.run())
    yield
    relay.stop()
    await running
    await publisher.close()
    await engine.dispose()


async def get_session() -> AsyncIterator[AsyncSession]:
    """A session for one request."""
    async with sessions() as session:
        yield session


app = FastAPI(lifespan=lifespan)


@app.exception_handler(SQLAlchemyError)
async def try_again(request: Request, error: SQLAlchemyError) -> Response:
    """A lost connection, a lock, a full pool: the client repeats the request."""
    if not is_transient(error):
        raise error
    return Response(status_code=503, headers={"Retry-After": "1"})


@app.post("/orders", status_code=201)
async def create(
    new: NewOrder,
    idempotency_key: Annotated[str, Header()],
    session: Annotated[AsyncSession, Depends(get_session)],
) -> dict[str, Any]:
    """Take the request, store the order and publish its event: all three, or none of them."""
    taken = await requests.take(session, idempotency_key, new.model_dump())
    if taken.verdict is Verdict.MISMATCH:
        raise HTTPException(422, "this key was used for another order")
    if taken.verdict is Verdict.IN_FLIGHT:
        raise HTTPException(409, "the first request is still running", {"Retry-After": "1"})
    if taken.is_new:
        taken.result = {"number": uuid4().hex, **new.model_dump()}
        session.add(Order(**taken.result))
        await outbox.publish(session, TOPIC, taken.result, key=taken.result["number"])
        await session.commit()  # before the answer is sent
    answer: dict[str, Any] = taken.result  # a repeated request gets the first one's answer
    return answer
