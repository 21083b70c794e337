"""A process forked inside a transaction must not touch the connection.

Both processes share the socket, or the SQLite file without each other's locks. A ROLLBACK by the child would
undo what the parent then commits, and closing the connection would end the parent's session.
"""

import os
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.orm import Session

from inbox_outbox_base.errors.blame import OWN
from inbox_outbox_base.errors.inbox import TransactionEnded


def is_in(process: int) -> bool:
    """Whether this is the given process, and not a fork of it."""
    return os.getpid() == process


def check(process: int) -> None:
    """Raise unless this is the given process.

    Raises:
        TransactionEnded: this is a child of the given process.
    """
    if not is_in(process):
        with OWN:  # the parent still has the message, so it must not become a dead letter here
            raise TransactionEnded(
                "this process was forked inside the block: only the process that began the transaction can "
                "end it"
            )


def abandon(handle: Connection | Session) -> None:
    """Neither roll back nor close it, not even when it is garbage-collected or the process ends."""
    import ctypes  # here, because loading it takes time, and few programs fork inside a transaction

    # The `with` block around the handle closes it: this attribute hides the method.
    vars(handle)["close"] = _nothing
    # A reference that is never released: collecting the handle would return its connection to the pool.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(handle))


def _nothing(*_: Any) -> None: ...
