"""A construct of an application's own, which SQLAlchemy does not know."""

from typing import Any

from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.elements import ClauseElement
from sqlalchemy.sql.expression import Executable


class Written(Executable, ClauseElement):
    """A statement that becomes this text."""

    inherit_cache = False

    def __init__(self, text: str) -> None:
        self.text = text


@compiles(Written)
def _written(element: Written, _: Any, **__: Any) -> str:
    return element.text
