"""Why a server refuses a role, its password or the database: libpq does not expose that SQLSTATE."""

import os
import select
import time
from typing import Any

_PATIENCE = 5.0
"""Seconds for the second connection."""
_CODE = b' C "'
"""The text before the SQLSTATE of an error in a libpq trace."""


def code_of_refusal(pgconn: Any) -> str | None:
    """The SQLSTATE. Connects once more, as psycopg did, with libpq's own trace of the server's answers. The
    trace stays in memory: it may contain a password."""
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
