"""What a database's protocol makes of the bytes that pass through the proxy."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes that are passed on together.

    `statement`: the SQL that the server runs when it gets them. `ends`: with them, the answer to a statement
    is complete. `reply`: what the client gets at once, instead of an answer from the server. `database`: the
    one that the client asks for with them.
    """

    data: bytes
    statement: str | None = None
    ends: bool = False
    reply: bytes = b""
    database: str | None = None


class Wire(Protocol):
    """One connection, as its database's protocol describes it."""

    def from_client(self, data: bytes) -> Iterator[Piece]:
        """The pieces that these bytes complete, on their way to the server."""

    def from_server(self, data: bytes) -> Iterator[Piece]:
        """The pieces that these bytes complete, on their way to the client."""
