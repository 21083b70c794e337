"""The contract between the outbox's wake-up and a database that can notify relays."""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterator
from typing import Any

from sqlalchemy import Connection

CHANNEL = "inbox_outbox"
"""The channel of the notifications."""


class Notifying(ABC):
    """One subclass for each database that has notifications."""

    driver: str
    """The driver through which a relay can listen."""

    @abstractmethod
    def notify(self, connection: Connection, payload: str) -> None:
        """Send a notification when the transaction on this connection commits."""

    @abstractmethod
    def session(self, connection: Connection) -> int:
        """The number of the server's session behind this connection."""

    @abstractmethod
    def listen(self, connection: Connection) -> None:
        """Receive notifications in this connection's session from the next COMMIT on."""

    @abstractmethod
    def unlisten(self, connection: Connection) -> None:
        """Stop receiving notifications from the next COMMIT on."""

    @abstractmethod
    def is_pooled(self, driver: Any, session: int | None) -> bool:
        """Whether the session belongs to a pooler, and not to this driver's connection."""

    @abstractmethod
    def payloads(self, driver: Any, seconds: float) -> Iterator[str]:
        """The payload of the next notification, if one arrives within `seconds`."""

    @abstractmethod
    def async_payloads(self, driver: Any, seconds: float | None) -> AsyncGenerator[str]:
        """The payloads of all notifications that arrive within `seconds`; None sets no limit."""
