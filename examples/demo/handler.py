"""The two ways to handle a chunk of messages: as delivered, or through the inbox."""

from collections.abc import Callable, Sequence

from sqlalchemy import Connection

from examples.demo import totals
from examples.demo.flights import Departure
from inbox import Inbox, Verdict

CONSUMER = "demo"
INBOX = Inbox(CONSUMER)

Handler = Callable[[Connection, Sequence[Departure]], list[Verdict]]


def without_inbox(connection: Connection, departures: Sequence[Departure]) -> list[Verdict]:
    """Count every delivered message, in the caller's transaction."""
    totals.add(connection, departures)
    return [Verdict.NEW] * len(departures)


def with_inbox(connection: Connection, departures: Sequence[Departure]) -> list[Verdict]:
    """Count every message once, however often it is delivered, in the caller's transaction.

    The inbox comes first: its rows are written before the totals, which all workers share, are locked.
    """
    verdicts = INBOX.accept_many(connection, [departure.key for departure in departures])
    taken = zip(departures, verdicts, strict=True)
    totals.add(connection, [departure for departure, verdict in taken if verdict is Verdict.NEW])
    return verdicts
