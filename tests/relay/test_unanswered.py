"""Messages whose sends had no answer several times, and which may kill relays: they are sent alone, and hold
up nothing else."""

import pytest
from sqlalchemy import Engine, update

from outbox import Relay
from tests.support.on_servers import on, spread
from tests.support.outbox_publishers import TABLES, Ordered, Recorder, name_of, publish
from tests.support.relay.servers import NAMES


def leave_unanswered(engine: Engine, *ids: str) -> None:
    """Make these messages have been sent three times without an answer."""
    silent = {"state": "unknown", "unanswered": 3, "attempts": 3, "error": "silence"}
    with engine.begin() as connection:
        connection.execute(update(TABLES.message).where(TABLES.message.c.id.in_(ids)).values(silent))


@pytest.mark.quick("postgresql")
@spread("publisher", [Recorder, Ordered], where=NAMES)
def test_many_in_one_topic(engine: Engine, publisher: type[Recorder]) -> None:
    """Messages behind many unanswered ones are sent meanwhile: single unanswered messages and batches of
    others take turns."""
    leave_unanswered(engine, *publish(engine, *(f"-{n}" for n in range(75)), *(f"{n:x}1" for n in range(16))))
    publish(
        engine, *(f"{n:x}2" for n in range(16)), *(f"z{n}" for n in range(5)), *(f"-{n}" for n in range(99))
    )
    sent = publisher()
    assert Relay(engine, sent, batch=20).run_once() == 91 + 120
    places = [place for place, batch in enumerate(sent.batches) for each in batch if name_of(each)[0] in "-z"]
    new = [place for place in places if sent.batches[place][0].attempt == 1]
    assert max(new) < 40
    assert all(len(batch) == 1 for batch in sent.batches if any(each.attempt > 1 for each in batch))
    assert all(sent.of(f"{n:x}") == [f"{n:x}1", f"{n:x}2"] for n in range(16))


@on("sqlite")
def test_one_behind_a_message_of_its_key(engine: Engine) -> None:
    """A message whose sends had no answer does not overtake an earlier message of its key, such as one that
    an operator has released."""
    publisher = Ordered()
    relay = Relay(engine, publisher)
    publish(engine, "b1")
    relay.run_once()  # so that single messages have the next turn
    _, second = publish(engine, "a1", "a2")
    leave_unanswered(engine, second)
    assert relay.run_once() == 2
    assert publisher.of("a") == ["a1", "a2"]
