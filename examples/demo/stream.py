"""At-least-once delivery of the messages: some are delivered again, soon or later."""

import random
from collections.abc import Sequence
from operator import itemgetter

from examples.demo.flights import Departure

REPEATED = 0.1
SEED = 2013


def deliveries(departures: Sequence[Departure], chunk: int) -> list[Departure]:
    """The messages in order, with a tenth of them repeated, the same ones in every run.

    Half of the copies follow within a chunk's length, so that another worker often has them at the same time
    as the original; the other half come at any later time.
    """
    draw = random.Random(SEED)
    chosen = draw.sample(range(len(departures)), round(REPEATED * len(departures)))
    placed = [(float(place), departure) for place, departure in enumerate(departures)]
    for index, original in enumerate(chosen):
        farthest = original + chunk if index % 2 else len(departures)
        placed.append((draw.uniform(original, farthest), departures[original]))
    placed.sort(key=itemgetter(0))
    return [departure for _, departure in placed]
