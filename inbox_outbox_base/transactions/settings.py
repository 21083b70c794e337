"""A connection whose settings would damage our values is refused when it is first used."""

from sqlalchemy import Connection

from inbox_outbox_base.databases.registry import database_of
from inbox_outbox_base.databases.taking import driver_of
from inbox_outbox_base.errors.inbox import UnusableConnection

from . import interrupted

CHECKED = "inbox: our values pass through this connection undamaged"


def check(connection: Connection, error: type[Exception] = UnusableConnection) -> None:
    """Check it once, and send nothing. From then on it is discarded if its driver is interrupted.

    Raises:
        UnusableConnection: the setting, its value, and what was expected.
    """
    info = connection.info  # of the driver's connection, for as long as that lasts
    if CHECKED in info:
        return
    interrupted.watch(connection.dialect)
    refused = database_of(connection).unusable_setting(driver_of(connection))
    if refused is not None:
        raise error(refused)
    info[CHECKED] = True
