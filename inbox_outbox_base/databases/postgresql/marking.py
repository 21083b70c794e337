"""A mark in a setting that ends with its transaction, and so tells this transaction from every other one.

The setting holds the marks of all that was marked in the transaction, because one can be inside another. What
stands in a row's header is no such proof: whoever locks the row may change it.
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
