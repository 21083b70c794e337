"""A worker process: it takes messages from the queue one by one, until it is told to end or killed."""

from collections.abc import Callable
from multiprocessing.connection import Connection as Pipe

from sqlalchemy import URL, Engine, create_engine

from examples.order_flow import chain, steps, transaction
from examples.order_flow.remote import Remote
from examples.order_flow.shop import Message, Shop, answer, take

Handler = Callable[[Message], float | None]
"""Handles a message; returns None to acknowledge it, or a redelivery delay in seconds."""

VARIANTS: dict[str, Callable[[Shop], Handler]] = {
    "transaction": transaction.handler,
    "steps": steps.handler,
    "chain": chain.handler,
}
IDLE = 0.01
"""Seconds to wait when there is no message."""


def main(pipe: Pipe, url: URL, inventory: Remote, shipping: Remote, variant: str) -> None:
    """Work until the other end of the pipe is closed."""
    engine = create_engine(url)
    handle = VARIANTS[variant](Shop(engine, inventory, shipping))
    while not pipe.poll(0):
        if not work(engine, handle):
            pipe.poll(IDLE)
    engine.dispose()


def work(engine: Engine, handle: Handler) -> bool:
    """Take a message, handle it and answer; return False if there is none."""
    message = take(engine)
    if message is None:
        return False
    try:
        again = handle(message)
    except OSError:  # a service did not answer
        again = IDLE
    answer(engine, message, again)
    return True
