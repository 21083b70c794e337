"""The input of a trial, and the expected outcome."""

from collections import Counter
from dataclasses import dataclass
from random import Random

from examples.order_chain.shop import ITEMS, Order
from examples.order_flow.services import NOWHERE

REFUSED_EACH, RESENT_EACH, WITHDRAWN_EACH = 6, 4, 5
"""One order in this many: cannot be shipped, is sent twice, is rolled back after publishing."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request of the customer."""

    order: Order
    is_withdrawn: bool
    """Rolled back after publishing: it must never arrive anywhere."""
    times: int
    """How often it is sent, each time with the same key."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The number of orders, the number of processes to kill meanwhile, and the random seed."""

    orders: int
    kills: int
    seed: int = 0

    @property
    def requests(self) -> list[Request]:
        """All requests of the customer, the same for the same seed."""
        chance = Random(self.seed)
        carried_out = [
            Request(
                Order(
                    number=f"order-{number}",
                    item=chance.choice(ITEMS),
                    quantity=chance.randint(1, 9),
                    to=NOWHERE if number % REFUSED_EACH == 0 else "somewhere",
                ),
                is_withdrawn=False,
                times=2 if number % RESENT_EACH == 0 else 1,
            )
            for number in range(1, self.orders + 1)
        ]
        withdrawn = [
            Request(Order(f"withdrawn-{number}", ITEMS[0], 1, "somewhere"), is_withdrawn=True, times=1)
            for number in range(self.orders // WITHDRAWN_EACH)
        ]
        requests = carried_out + withdrawn
        chance.shuffle(requests)
        return requests

    @property
    def statuses(self) -> dict[str, str]:
        """By order number: the expected status."""
        return {
            each.order.number: "refused" if each.order.to == NOWHERE else "confirmed"
            for each in self.requests
            if not each.is_withdrawn
        }

    @property
    def sold(self) -> dict[str, int]:
        """By item: the quantity that is sold."""
        statuses = self.statuses
        confirmed = (each.order for each in self.requests if statuses.get(each.order.number) == "confirmed")
        sold: Counter[str] = Counter()
        for order in confirmed:
            sold[order.item] += order.quantity
        return {item: sold[item] for item in ITEMS}

    @property
    def moments(self) -> list[int]:
        """The numbers of requests after which a kill is due."""
        chance = Random(self.seed)
        return sorted(chance.randrange(len(self.requests)) for _ in range(self.kills))
