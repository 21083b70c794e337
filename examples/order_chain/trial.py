"""A run of the chain over one transport, from the first order to the last message, and its promises."""

import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from sqlalchemy import Engine, delete, func, insert, select

from examples._common import forget
from examples._outbox import clear, waiting
from examples.order_chain import shop, worker
from examples.order_chain.crew import Crew, Heard, Role
from examples.order_chain.plan import Plan, Request
from examples.order_chain.transport import Transport
from examples.order_flow.processes import service
from examples.order_flow.remote import Remote
from inbox.schema import tables
from outbox.schema import tables as outbox_tables

IN_STOCK = 1_000_000
"""The initial quantity of each item."""
CUSTOMER, BROKER = "customer", "broker"


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a trial."""

    orders: list[tuple[str, str]]
    """Number and status of every row."""
    sold: dict[str, int]
    """By item: how much the stock has decreased."""
    shipments: dict[str, int]
    """By order number: the number of shipments in the downstream system."""
    calls: int
    """Calls to the downstream system."""
    dead: int
    """Dead letters."""
    heard: Heard
    killed: Counter[str]
    """Killed processes, by role."""
    seconds: float

    def promises(self, plan: Plan) -> dict[str, bool]:
        """The promises, and whether each was kept."""
        confirmed = {number: 1 for number, status in plan.statuses.items() if status == "confirmed"}
        return {
            "each order is one row with the right status, and no other is": Counter(self.orders)
            == Counter(plan.statuses.items()),
            "the stock is what the confirmed orders have left": self.sold == plan.sold,
            "each confirmed order is shipped once, and no other is": self.shipments == confirmed,
            "no message is a dead letter": self.dead == 0,
        }


def run(engine: Engine, transport: Transport, plan: Plan, progress: Callable[[int], object]) -> Result:
    """Send the orders over an opened transport, kill processes meanwhile, and return the result.

    Raises:
        RuntimeError: a process does not start or ends unexpectedly, or the broker does not answer.
    """
    reset(engine)
    began = time.monotonic()
    with service() as downstream:
        trial = Trial(engine, transport, plan, downstream)
        trial.run(progress)
        state = downstream.state()
        return Result(
            orders=rows(engine),
            sold=sold(engine),
            shipments=state["kept"],
            calls=sum(state["calls"].values()),
            dead=dead(engine) + transport.dead(),
            heard=trial.heard,
            killed=trial.killed,
            seconds=time.monotonic() - began,
        )


class Trial:
    """Runs the processes until all work is done, and kills some of them meanwhile."""

    def __init__(self, engine: Engine, transport: Transport, plan: Plan, downstream: Remote) -> None:
        self._engine = engine
        self._transport = transport
        self._requests = plan.requests
        customer = Role(CUSTOMER, worker.customer, lambda: (engine.url, self._unsent()))
        self._roles = [customer, *transport.roles(engine.url, downstream)]
        self._chance = Random(plan.seed)
        self._moments = deque(plan.moments)
        self.heard = Heard()
        self.killed: Counter[str] = Counter()

    def run(self, progress: Callable[[int], object]) -> None:
        """Run until every order is sent and no message is left anywhere, not even with a worker."""
        while not self._is_done():
            with Crew(self._roles, self.heard, self._chance) as crew:
                while not self._is_done():
                    crew.listen(0.02)
                    progress(sum(status != "new" for _, status in rows(self._engine)))
                    self._kill(crew)
            self.killed += crew.killed

    def _kill(self, crew: Crew) -> None:
        if self._moments and self._moments[0] <= len(self.heard.sent):
            self._moments.popleft()
            time.sleep(self._chance.uniform(0, 0.1))
            restart = self._transport.restart
            if restart and self._chance.randrange(1 + len(self._roles)) == 0:
                restart()
                crew.killed[BROKER] += 1
            else:
                crew.kill_one(*([] if self._unsent() else [CUSTOMER]))

    def _is_done(self) -> bool:
        if self._unsent() or self._moments or waiting(self._engine):
            return False
        return sent(self._engine) <= self.heard.taken and self._transport.waiting() == 0

    def _unsent(self) -> list[Request]:
        return [each for each in self._requests if each.order.number not in self.heard.sent]


def reset(engine: Engine) -> None:
    """Create a shop with full stock and no orders."""
    clean_up(engine)
    shop.metadata.create_all(engine)
    with engine.begin() as connection:
        connection.execute(insert(shop.stock), [{"item": item, "quantity": IN_STOCK} for item in shop.ITEMS])


def clean_up(engine: Engine) -> None:
    """Remove everything that a trial has created in the database.

    Raises:
        RuntimeError: there are foreign messages in the outbox.
    """
    clear(engine, *shop.TOPICS)
    status = tables().status
    for consumer in shop.TOPICS:
        forget(engine, consumer)
    with engine.begin() as connection:
        connection.execute(delete(status).where(status.c.consumer.in_(shop.TOPICS)))
    shop.metadata.drop_all(engine)


def rows(engine: Engine) -> list[tuple[str, str]]:
    """Number and status of every order."""
    with engine.connect() as connection:
        found = connection.execute(select(shop.orders.c.number, shop.orders.c.status))
        return [(number, status) for number, status in found]


def sold(engine: Engine) -> dict[str, int]:
    """By item: the quantity taken from the stock."""
    with engine.connect() as connection:
        found = connection.execute(select(shop.stock.c.item, shop.stock.c.quantity))
        return {item: IN_STOCK - quantity for item, quantity in found}


def sent(engine: Engine) -> set[tuple[str, str]]:
    """The messages that have left the outbox, by topic and id."""
    message = outbox_tables().sent
    with engine.connect() as connection:
        return {(topic, name) for topic, name in connection.execute(select(message.c.topic, message.c.id))}


def dead(engine: Engine) -> int:
    """The outbox's dead letters."""
    letter = outbox_tables().dead
    count = select(func.count()).where(letter.c.topic.in_(shop.TOPICS))
    with engine.connect() as connection:
        return connection.scalar(count) or 0
