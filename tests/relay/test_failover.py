"""A failover loses the last commits while a relay is sending; other messages then get the same sequences."""

from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any

from sqlalchemy import Engine, delete, insert, select

from outbox import Envelope, Outcome, Refused, Relay, Unavailable, Unknown
from tests.support.on_servers import WITH_WRITERS, spread
from tests.support.outbox_publishers import (
    ACCEPTED,
    TABLES,
    Recorder,
    dead,
    names_of,
    publish,
    relay,
    waiting,
)

OUTCOMES = [ACCEPTED, Refused("no"), Unavailable("away"), Unknown("no answer")]
OPTIONS: list[dict[str, Any]] = [{}, {"keep_sent": 60}, {"after_dead": "hold"}]


class Overtaken(Recorder):
    """During its send, the messages are lost, and others get their sequences in the same buckets."""

    def __init__(self, engine: Engine, outcome: Outcome) -> None:
        super().__init__(lambda _: outcome)
        self.engine = engine
        self.relay = Relay(engine, self)

    def send(self, batch: Sequence[Envelope]) -> Iterable[Outcome]:
        with self.engine.begin() as connection:
            lost = connection.execute(select(TABLES.message)).mappings().all()
            connection.execute(delete(TABLES.message))
            rows = [dict(row) | {"id": f"new{row['id'][3:]}", "payload": b"new"} for row in lost]
            connection.execute(insert(TABLES.message), rows)
        self.relay.stop()
        return super().send(batch)


@spread("outcome, options", product(OUTCOMES, OPTIONS), elsewhere=len(OPTIONS), where=WITH_WRITERS)
def test_outcomes_are_not_recorded_for_other_messages(
    engine: Engine, outcome: Outcome, options: dict[str, Any]
) -> None:
    """The outcomes of the lost messages are not recorded for the messages that now have their sequences;
    these are sent, in their first attempt."""
    publish(engine, "a1", "b1", "-1")
    publisher = Overtaken(engine, outcome)
    publisher.relay = Relay(engine, publisher, max_attempts=1, **options)
    publisher.relay.run_once()
    assert [row.attempts for row in waiting(engine).values()] == [0]
    assert not dead(engine)
    after = Recorder()
    assert relay(engine, after) == 3
    assert names_of(after.sent) == ["new"] * 3
    assert {message.attempt for message in after.sent} == {1}
