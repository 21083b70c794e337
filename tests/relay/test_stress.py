"""Very many messages wait while the broker accepts nothing; then all of them are sent."""

import time
from collections import defaultdict
from collections.abc import Sequence

import pytest
from sqlalchemy import text

from outbox import Accepted, Envelope, Outcome, Relay, Unavailable
from outbox._publishing.buckets import bucket_of
from outbox.schema import BUCKETS
from tests.support.database import Database
from tests.support.outbox_publishers import TABLES, count
from tests.support.processes import wait_until
from tests.support.relay.crashes import running

KEYS = [f"key-{number}" for number in range(500)]
OF_EACH = 400
FILL = text(
    f"""
    INSERT INTO outbox_message (bucket, id, topic, key, payload, content_type)
    SELECT bucket, gen_random_uuid(), 'orders', key, convert_to(number::text, 'UTF8'), 'text/plain'
    FROM unnest(CAST(:keys AS text[]), CAST(:buckets AS smallint[])) AS keys (key, bucket)
    CROSS JOIN generate_series(1, {OF_EACH}) AS number
    ORDER BY number, key
    """
)
AWAY = 5.0
"""Seconds for which the broker accepts nothing."""


class Away:
    """A publisher whose broker is unavailable at first."""

    def __init__(self) -> None:
        self.back_at = time.monotonic() + AWAY
        self.refused: list[int] = []
        self.taken: dict[str | None, list[int]] = defaultdict(list)

    def send(self, batch: Sequence[Envelope]) -> list[Outcome]:
        """Accept a batch, or nothing of it."""
        if time.monotonic() < self.back_at:
            self.refused.append(len(batch))
            return [Unavailable("away")] * len(batch)
        for message in batch:
            self.taken[message.key].append(int(message.payload))
        return [Accepted()] * len(batch)


@pytest.mark.long
def test_200_000_messages_leave_in_order_once_the_broker_is_back(postgres: Database) -> None:
    """While the broker accepts nothing, the relay tries it rarely, with one message at a time; then every
    message is sent once, each key in order."""
    engine = postgres.engine()
    with engine.begin() as connection:
        connection.execute(FILL, {"keys": KEYS, "buckets": [bucket_of(key, BUCKETS) for key in KEYS]})
    assert count(engine, TABLES.message) == len(KEYS) * OF_EACH
    publisher = Away()
    with running(Relay(engine, publisher)):
        wait_until(lambda: sum(map(len, publisher.taken.values())) >= len(KEYS) * OF_EACH, timeout=300)
        wait_until(lambda: count(engine, TABLES.message) == 0)
    assert publisher.taken == {key: [*range(1, OF_EACH + 1)] for key in KEYS}
    assert 2 <= len(publisher.refused) <= 10 * AWAY
    assert set(publisher.refused[1:]) == {1}
