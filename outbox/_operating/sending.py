"""What relays are sending. If one is lost, nobody knows what the broker has of it."""

import json
from typing import Any

from sqlalchemy import Connection, Row

from inbox_outbox_base.databases.letter import Place
from outbox.schema import OutboxTables

from . import statements


def senders(connection: Connection, tables: OutboxTables) -> dict[Place, Row[Any]]:
    """By the places of the messages, the relay that is sending each, or was when it was lost. Of two, one of
    which is lost, the one that is not."""
    relays = connection.execute(statements.relays(tables)).all()
    return {
        (int(bucket), sequence): relay
        for relay in sorted(relays, key=lambda each: each.lease_until)
        for bucket, sequences in json.loads(relay.sending or "{}").items()
        for sequence in sequences
    }


def is_alive(relay: Row[Any]) -> bool:
    """Whether the relay's lease holds."""
    return bool(relay.lease_until >= relay.now)


def sent_now(connection: Connection, tables: OutboxTables) -> list[Place]:
    """The places of all these messages."""
    return [*senders(connection, tables)]
