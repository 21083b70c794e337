"""What relays are sending. If one is lost, nobody knows what the broker has of it."""

import json

from sqlalchemy import Connection

from inbox_outbox_base.databases.letter import Place
from outbox.schema import OutboxTables

from . import statements


def sent_now(connection: Connection, tables: OutboxTables) -> list[Place]:
    """The places of the messages that a relay is sending, or was when it was lost."""
    return [
        (int(bucket), sequence)
        for relay in connection.execute(statements.relays(tables))
        for bucket, sequences in json.loads(relay.sending or "{}").items()
        for sequence in sequences
    ]
