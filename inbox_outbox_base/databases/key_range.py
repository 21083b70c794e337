"""The range of keys that a consumer takes, if they name their time."""

from typing import NamedTuple

from inbox_outbox_base.checks.options import shown
from inbox_outbox_base.errors.inbox import TransientError


class KeyRange(NamedTuple):
    """Which keys a consumer takes, if they name their time."""

    first: str
    """The lowest one; "" if there is no limit."""
    until: str | None
    """All are lower than this one: the consumer's partitions end there. None if it has no partitions."""

    def check(self, key: str) -> None:
        """Refuse a key for which there is no partition yet. It would be an error that aborts the transaction.

        Raises:
            TransientError: there is none.
        """
        if self.until is not None and key >= self.until:
            raise TransientError(
                f"key={shown(key)}: the partitions of its consumer end at {shown(self.until)}; make more "
                "with `inbox-outbox partitions`, and deliver the message again"
            )
