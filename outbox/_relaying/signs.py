"""A relay's health."""

from inbox_outbox_base.calls import clock
from inbox_outbox_base.errors.secrets import strike_out
from inbox_outbox_base.monitoring.life_signs import LifeSigns, Probe
from outbox._relaying.sending.lanes import TopicLanes

from .rounds import Rounds
from .settings import RelaySettings
from .transactions import Transactions

_NAMED = 20
"""The most rejected topics that a probe names."""


class RelaySigns(LifeSigns):
    """Adds to the loop's own signs what the lease, the transactions and the lanes say."""

    def __init__(
        self, settings: RelaySettings, rounds: Rounds, transactions: Transactions, lanes: TopicLanes
    ) -> None:
        super().__init__(f"relay {settings.name}", 2 * settings.lease)
        self._rounds = rounds
        self._transactions = transactions
        self._lanes = lanes

    def look(self, *, is_stopping: bool) -> Probe:
        """The relay's health."""
        rejected = [f"topic {each.topic!r} is rejected: {each.reason}" for each in self._lanes.rejected()]
        if len(rejected) > _NAMED:
            rejected[_NAMED:] = [f"{len(rejected) - _NAMED} more topics are rejected"]
        says = tuple(map(strike_out, rejected))
        return self.probe(is_stopping=is_stopping, not_ready=self._not_ready_because(), says=says)

    def _not_ready_because(self) -> str | None:
        if self._transactions.trouble is not None:
            return f"the database at {self._transactions.place}: {self._transactions.trouble}"
        if not self._rounds.has_joined:
            return "it is not in the group of relays"
        return "its lease is over" if clock.now() >= self._rounds.expires else None
