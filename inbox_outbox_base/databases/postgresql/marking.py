"""A mark in a setting that ends with its transaction, and so tells this transaction from every other one.

The setting holds several marks, because one step can run inside the transaction of another. A row's header
proves nothing: it also changes when another transaction locks the row.
"""

from typing import Any

from sqlalchemy import func, literal
from sqlalchemy.sql.elements import ColumnElement

_MARKS = "inbox.marks"


def mark(witness: ColumnElement[bytes]) -> ColumnElement[bool]:
    """Mark the transaction with random bytes; always true."""
    marks = func.concat(_marks(), " ", func.encode(witness, "hex"))
    return func.set_config(_MARKS, marks, literal(True)) != ""


def is_marked(witness: ColumnElement[bytes]) -> ColumnElement[bool]:
    """Whether the transaction has this mark."""
    return func.strpos(_marks(), func.encode(witness, "hex")) > 0


def _marks() -> ColumnElement[Any]:
    return func.coalesce(func.current_setting(_MARKS, literal(True)), "")
