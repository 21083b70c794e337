"""A record outlives its lease, however short the retention, on every store."""

import time

from inbox._status_mode.stores import Store
from tests.support.status_mode.stores import status_inbox, stored

RETENTION = 0.2


def test_a_heartbeat_does_not_shorten_the_life_of_a_record(store: Store) -> None:
    """A store that expires records itself counts the retention from the end of the lease, not from a
    heartbeat."""
    with status_inbox(store, retention=RETENTION).claim("a") as claim:
        claim.heartbeat()
        time.sleep(2 * RETENTION)
        assert stored(store).token == claim.token
