"""What a round of a relay costs: a message that commits during a round waits for its end, and for the whole
next one."""

import re
from collections import Counter

from sqlalchemy import Connection, event

from outbox import Relay
from tests.support.database import Database
from tests.support.on_servers import each_on
from tests.support.outbox_publishers import Recorder, publish
from tests.support.relay.crashes import engine_of

LOCK, NOTE = "SELECT outbox_relay", "UPDATE outbox_relay"
DELETE, READ = "DELETE outbox_message", "SELECT outbox_message"
ROUNDS = {
    "postgresql": (LOCK, DELETE, READ, NOTE),
    # It asks first which buckets have messages.
    "mariadb": (LOCK, DELETE, "SELECT outbox_bucket", READ, READ, NOTE),
}


@each_on("postgresql", "usual", [(ROUNDS["postgresql"],)], [(ROUNDS["mariadb"],)], among=ROUNDS)
def test_the_statements_of_a_round(migrated: Database, usual: tuple[str, ...]) -> None:
    """A round that records outcomes and sends on. One statement writes the relay's row, whose old versions
    stay while a snapshot is held."""
    engine = engine_of(migrated)
    publish(engine, *(f"a{number}" for number in range(20)))
    rounds: list[tuple[str, ...]] = []
    statements: list[str] = []

    @event.listens_for(engine, "before_cursor_execute")
    def see(_: Connection, cursor: object, statement: str, *rest: object) -> None:
        table = re.search("outbox_[a-z]+", statement)
        statements.append(f"{statement.split()[0]} {table and table[0]}")

    @event.listens_for(engine, "commit")
    def end(_: Connection) -> None:
        rounds.append(tuple(statements))
        statements.clear()

    assert Relay(engine, Recorder(), batch=1).run_once() == 20
    assert Counter(rounds).most_common(1)[0][0] == usual
