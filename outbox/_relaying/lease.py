"""A relay's lease while a batch is on its way to the broker."""

import logging
from collections.abc import Callable

from sqlalchemy.exc import SQLAlchemyError

from inbox_outbox_base.calls import clock
from inbox_outbox_base.errors.outbox import OutboxError
from inbox_outbox_base.errors.secrets import reason

from .rounds import Retired, Rounds
from .settings import RelaySettings
from .transactions import Transactions

_log = logging.getLogger("outbox.relay")


class RelayLease:
    """Renews the lease between the transactions of a relay's rounds."""

    def __init__(self, rounds: Rounds, settings: RelaySettings, transactions: Transactions) -> None:
        self._rounds = rounds
        self._settings = settings
        self._transactions = transactions
        self.is_sending = False
        """Whether a batch is on its way."""

    def may_send(self) -> bool:
        """Whether a send that begins now will end before the lease does; renews the lease if that helps."""
        longest = self._settings.timeout or 0.0
        if clock.now() + longest >= self._rounds.expires:
            self._renew()
        return clock.now() + longest < self._rounds.expires

    def beat(self, wait: Callable[[float], bool]) -> None:
        """Renew the lease during a long send; `wait` waits for some seconds and returns whether to end.

        Not at other times: a relay that waits for ever for the answer to a transaction must lose its buckets.
        """
        lease = self._settings.lease
        while not wait(min(1.0, lease / 6)):
            is_late = clock.now() > self._rounds.expires - lease / 2
            if self.is_sending and self._rounds.has_joined and is_late:
                self._renew()

    def _renew(self) -> None:
        try:
            self._transactions.do(self._rounds.renew, 1)
        except (SQLAlchemyError, OSError, Retired, OutboxError) as error:
            _log.warning("the lease could not be renewed: %s", reason(error))
