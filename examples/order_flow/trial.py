"""A run of one variant of the order flow, from the first message to the last, and its promises."""

import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import Connection, Engine, create_engine, delete, func, select, text
from sqlalchemy.pool import NullPool

from examples._common import forget
from examples.order_flow import shop
from examples.order_flow.processes import Workers, service
from examples.order_flow.services import NOWHERE
from inbox import SqlStore
from inbox.schema import tables

WORKERS = 2
REPEATED = 0.2
"""The fraction of messages that are delivered twice."""
REFUSED_EACH = 10
"""One order in this many cannot be shipped."""

_OPEN = text(
    "SELECT coalesce(max(extract(epoch FROM clock_timestamp() - xact_start)), 0) FROM pg_stat_activity "
    "WHERE datname = current_database() AND state LIKE 'idle in transaction%'"
)


@dataclass(frozen=True, slots=True)
class Plan:
    """The input of every variant: the orders, their destinations, and how many workers are killed."""

    orders: int
    kills: int

    @property
    def destinations(self) -> dict[str, str]:
        """By order number: the destination."""
        places = {f"order-{number}": "somewhere" for number in range(1, self.orders + 1)}
        refused = [number for index, number in enumerate(places) if index % REFUSED_EACH == REFUSED_EACH - 1]
        return places | dict.fromkeys(refused, NOWHERE)

    @property
    def statuses(self) -> dict[str, str]:
        """By order number: the expected status."""
        outcomes = {NOWHERE: "refused"}
        return {number: outcomes.get(to, "confirmed") for number, to in self.destinations.items()}

    @property
    def confirmed(self) -> int:
        """The number of orders to be shipped."""
        return sum(status == "confirmed" for status in self.statuses.values())


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a trial."""

    orders: list[tuple[str, str]]
    """Number and status of every row."""
    locks: dict[str, int]
    """The number of stock locks held for each order at the end."""
    shipments: dict[str, int]
    calls: dict[str, int]
    """The number of calls for the same thing, by "verb order"."""
    killed: int
    retries: int
    """Attempts beyond each message's first one; each must repeat at most one call."""
    open_for: float
    """The longest time a transaction was seen idle, in seconds."""
    seconds: float

    @property
    def repeated(self) -> int:
        """The number of repeated calls."""
        return sum(times - 1 for times in self.calls.values())

    def promises(self, plan: Plan, variant: str) -> dict[str, bool]:
        """The variant's promises, and whether each was kept."""
        are_right = Counter(self.orders) == Counter(plan.statuses.items())
        rows = {"each order is one row with the right status": are_right}
        if variant == "transaction":
            return rows
        confirmed = {number: 1 for number, status in plan.statuses.items() if status == "confirmed"}
        at_most_one = self.repeated <= self.retries
        return rows | {
            "stock is locked once for each confirmed order, and for no other": self.locks == confirmed,
            "each confirmed order is shipped once": self.shipments == confirmed,
            "an attempt repeats at most the call that the last one had not finished": at_most_one,
        }


def run(engine: Engine, variant: str, plan: Plan, progress: Callable[[int], object]) -> Result:
    """Send the orders, kill workers meanwhile, and return the result.

    Raises:
        RuntimeError: a process does not start, or ends unexpectedly.
    """
    _reset(engine)
    began = time.monotonic()
    watching = create_engine(engine.url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    with service() as inventory, service() as shipping, watching.connect() as watch:
        _send(engine, plan)
        with Workers(WORKERS, engine.url, inventory, shipping, variant) as workers:
            killed, longest = _kill_on_the_way(workers, plan, watch, progress)
        return Result(
            orders=_orders(watch),
            locks=inventory.state()["kept"],
            shipments=shipping.state()["kept"],
            calls=inventory.state()["calls"] | shipping.state()["calls"],
            killed=killed,
            retries=_retries(engine, plan.orders) if variant == "steps" else killed,
            open_for=longest,
            seconds=time.monotonic() - began,
        )


def _kill_on_the_way(
    workers: Workers, plan: Plan, watch: Connection, progress: Callable[[int], object]
) -> tuple[int, float]:
    """Wait until the queue is empty; return how many workers were killed, and the longest idle
    transaction."""
    killed, longest = 0, 0.0
    while watch.scalar(select(func.count()).select_from(shop.queue)):
        settled = sum(status != "new" for _, status in _orders(watch))
        progress(settled)
        longest = max(longest, float(watch.execute(_OPEN).scalar_one()))
        if killed < plan.kills and settled >= (killed + 1) * plan.orders / (plan.kills + 1):
            time.sleep(random.uniform(0, 0.1))
            workers.kill_one()
            killed += 1
        workers.check()
        time.sleep(0.005)
    progress(plan.orders)
    return killed, longest


def clean_up(engine: Engine) -> None:
    """Remove everything that a trial has created; also the consumer's policy, since the next variant may use
    the other mode."""
    forget(engine, shop.CONSUMER)
    with engine.begin() as connection:
        for table in (tables().status, tables().consumer):
            connection.execute(delete(table).where(table.c.consumer == shop.CONSUMER))
    shop.metadata.drop_all(engine)


def _reset(engine: Engine) -> None:
    clean_up(engine)
    shop.metadata.create_all(engine)


def _send(engine: Engine, plan: Plan) -> None:
    """Send all orders in random order, some of them twice."""
    numbers = list(plan.destinations)
    messages = numbers + random.sample(numbers, round(len(numbers) * REPEATED))
    random.shuffle(messages)
    with engine.begin() as connection:
        for number in messages:
            shop.publish(connection, "check", number, plan.destinations[number])


def _orders(connection: Connection) -> list[tuple[str, str]]:
    found = connection.execute(select(shop.order.c.number, shop.order.c.status))
    return [(number, status) for number, status in found]


def _retries(engine: Engine, orders: int) -> int:
    records = SqlStore(engine).list(shop.CONSUMER, None, orders)
    return sum(record.attempts_started - 1 for record in records)
