"""A relay of the order chain, without a broker, that kills itself at one of its SQL statements."""

import logging
import os
import signal
from itertools import count
from multiprocessing.connection import Connection as Pipe
from typing import Any

from sqlalchemy import URL, create_engine, event

from examples.order_chain.shop import INVENTORY, Order
from examples.order_chain.steps import publish, steps
from examples.order_chain.worker import BACKOFF, LEASE
from examples.order_flow.remote import Remote
from outbox import DirectDelivery, Relay


def main(pipe: Pipe, url: URL, downstream: Remote, order: Order, last: int) -> None:
    """Publish an order and relay everything; kill -9 right before the statement with this number. At the end
    it prints the number of statements."""
    logging.disable()
    engine = create_engine(url)
    with engine.begin() as connection:
        publish(connection, INVENTORY, order)
    numbers = count(1)
    seen = 0

    @event.listens_for(engine, "before_cursor_execute")
    def die(*_: Any) -> None:
        nonlocal seen
        seen = next(numbers)
        if seen == last:
            os.kill(os.getpid(), signal.SIGKILL)

    Relay(engine, DirectDelivery(steps(engine, downstream)), lease=LEASE, backoff=BACKOFF).run_once()
    engine.dispose()
    pipe.send(seen)
