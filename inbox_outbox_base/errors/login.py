"""Whether a server refuses the role, its password or the database, decided by its code, never by its text."""

import os
import select
import time
from contextlib import suppress
from typing import Any

from sqlalchemy.exc import DBAPIError

from .codes import code_of

_MYSQL = {1044, 1045, 1049, 1698}
_PATIENCE = 5.0
"""Seconds for the second connection to PostgreSQL."""
_CODE = b' C "'
"""The text before the SQLSTATE of an error in a libpq trace."""


def is_refusal(code: str | int | None) -> bool:
    """Whether this code means such a refusal."""
    if isinstance(code, str):
        return code.startswith("28") or code == "3D000"
    return code in _MYSQL


def refusal(error: DBAPIError) -> str | int | None:
    """The code by which a connection was permanently refused; None if it was not, or nobody can tell."""
    code = code_of(error)
    pgconn = getattr(error.orig, "pgconn", None)
    if code is None and pgconn is not None:
        # libpq does not expose the SQLSTATE of a refused connection, and its text is translated.
        with suppress(Exception):
            code = _asked_again(pgconn)
    return code if is_refusal(code) else None


def _asked_again(pgconn: Any) -> str | None:
    """Connect once more, as psycopg did, with libpq's own trace of the server's answers. The trace stays in
    memory: it may contain a password."""
    from psycopg import conninfo, pq

    given = {option.keyword.decode(): option.val.decode() for option in pgconn.info if option.val}
    connection = pq.PGconn.connect_start(conninfo.make_conninfo("", **given).encode())
    trace = os.memfd_create("trace")
    try:
        connection.trace(trace)
        _wait_for(connection)
        connection.untrace()
        answers = os.pread(trace, 100_000, 0).splitlines()
    finally:
        connection.finish()
        os.close(trace)
    for answer in answers:
        if b"ErrorResponse" in answer and _CODE in answer:
            return answer.partition(_CODE)[2][:5].decode()
    return None


def _wait_for(connection: Any) -> None:
    from psycopg.pq import PollingStatus

    end = time.monotonic() + _PATIENCE
    while (left := end - time.monotonic()) > 0:
        status = connection.connect_poll()
        if status not in (PollingStatus.READING, PollingStatus.WRITING):
            return
        reads = status == PollingStatus.READING
        socket = [connection.socket]
        select.select(socket if reads else [], [] if reads else socket, [], left)
