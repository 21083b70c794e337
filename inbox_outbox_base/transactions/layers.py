"""Connections of a class of their own for a while: a layer is a subclass whose methods check something first.

A listener to SQLAlchemy's events would cost every statement of the engine. Layers may lie on each other, and
each is taken off wherever it lies.
"""

from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection

Layer = Callable[[Any], Any]
"""A cached function that makes the subclass of a class of connections. The subclass names the function as
`layer` and the class as `under`."""


def put_on(connection: Connection, layer: Layer) -> None:
    """Put the layer on the connection's class, above all others."""
    connection.__class__ = layer(type(connection))


def take_off(connection: Connection, layer: Layer) -> None:
    """Take the layer off, or the highest of several; nothing happens if there is none."""
    connection.__class__ = _without(type(connection), layer)


def _without(kind: Any, layer: Layer) -> Any:
    if "layer" not in kind.__dict__:
        return kind
    return kind.under if kind.layer is layer else kind.layer(_without(kind.under, layer))
