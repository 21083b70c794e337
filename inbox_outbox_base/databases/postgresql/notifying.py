"""PostgreSQL: NOTIFY and LISTEN. A pooler in transaction mode runs LISTEN in a session that it keeps."""

import contextlib
from collections.abc import AsyncGenerator, Iterator
from typing import Any

from sqlalchemy import Connection, text

from inbox_outbox_base.databases.notifying import CHANNEL, Notifying

_NOTIFY = text("SELECT pg_notify(:channel, :payload)")
_SESSION = text("SELECT pg_backend_pid()")
_LISTEN, _UNLISTEN = text(f"LISTEN {CHANNEL}"), text(f"UNLISTEN {CHANNEL}")


class PostgreSQLNotifying(Notifying):
    """Only psycopg hands out notifications."""

    driver = "psycopg"

    def notify(self, connection: Connection, payload: str) -> None:
        connection.execute(_NOTIFY, {"channel": CHANNEL, "payload": payload})

    def session(self, connection: Connection) -> int:
        return int(connection.execute(_SESSION).scalar_one())

    def listen(self, connection: Connection) -> None:
        connection.execute(_LISTEN)

    def unlisten(self, connection: Connection) -> None:
        connection.execute(_UNLISTEN)

    def is_pooled(self, driver: Any, session: int | None) -> bool:
        return bool(driver.info.backend_pid != session)

    def payloads(self, driver: Any, seconds: float) -> Iterator[str]:
        return (found.payload for found in driver.notifies(timeout=seconds, stop_after=1))

    async def async_payloads(self, driver: Any, seconds: float | None) -> AsyncGenerator[str]:
        async with contextlib.aclosing(driver.notifies(timeout=seconds)) as found:
            async for notification in found:
                yield notification.payload
