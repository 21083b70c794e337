"""The broker accepts some keys of a topic and rejects others, as when a partition has no leader."""

import pytest
from sqlalchemy import Engine, update

from inbox import Backoff
from outbox import Envelope, Message, Outbox, Outcome, Relay, Unavailable, Unknown
from tests.support.on_servers import on
from tests.support.outbox_publishers import ACCEPTED, TABLES, Recorder
from tests.support.processes import wait_until
from tests.support.relay.crashes import running


def publish(engine: Engine, *keys: str) -> None:
    with engine.begin() as connection:
        Outbox().publish_many(connection, [Message("orders", b"-", key) for key in keys])


@on("postgresql")
@pytest.mark.parametrize("outcome", [Unavailable("no leader", 0.0), Unknown("silence")], ids=str)
@pytest.mark.parametrize("sends", [0, 5])
def test_keys_that_are_taken_go_on(engine: Engine, outcome: Outcome, sends: int) -> None:
    """The accepted keys go on, although many messages of the other keys wait and are retried again and
    again."""

    def answer(message: Envelope) -> Outcome:
        return outcome if str(message.key).startswith("bad") else ACCEPTED

    publish(engine, *(f"bad{number}" for number in range(60)))
    if sends:
        silent = {"state": "unknown", "unanswered": sends, "attempts": sends, "error": "silence"}
        with engine.begin() as connection:
            connection.execute(update(TABLES.message).values(silent))
    publisher = Recorder(answer)
    with running(Relay(engine, publisher, poll=0.05, backoff=Backoff(first=0.05, longest=0.1))):
        wait_until(lambda: len(publisher.batches) > 2)
        for number in range(0, 80, 20):
            publish(engine, *(f"good{each}" for each in range(number, number + 20)))
            before = len(publisher.batches)
            wait_until(lambda: len(publisher.accepted) == number + 20, timeout=20)  # noqa: B023
            are_taken = [batch[0] in publisher.accepted for batch in publisher.batches[before:]]
            last = max((place for place, is_taken in enumerate(are_taken) if is_taken), default=0)
            assert are_taken[:last].count(False) < 10
