"""What a statement may do to its transaction: a text, or a construct that SQLAlchemy does not know."""

import re
from typing import Any

from sqlalchemy import CompoundSelect, Select, TextClause, UpdateBase
from sqlalchemy.orm import FromStatement
from sqlalchemy.schema import DefaultGenerator
from sqlalchemy.sql.elements import ReleaseSavepointClause, RollbackToSavepointClause, SavepointClause
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.sql.selectable import TextualSelect

_HARMLESS = (
    Select,
    UpdateBase,
    CompoundSelect,
    FunctionElement,
    DefaultGenerator,
    SavepointClause,
    ReleaseSavepointClause,
    RollbackToSavepointClause,
)
"""Constructs of SQLAlchemy's that end no transaction, if no text is added to them."""

_QUOTED = re.compile(
    r"""'[^'\\]*'|"[^"\\]*"|`[^`]*`|\$(\w*)\$.*?\$\1\$|--[^\n]*|/\*(?!M?!).*?\*/""", re.DOTALL
)
"""Quoted text, names and bodies, and comments; MySQL and MariaDB run what is in comments like /*! this */."""
_QUOTE = re.compile(r"""['"`\\]|\*/""")
_CANNOT_END = re.compile(
    r"[\s(]*(SELECT|INSERT|UPDATE|DELETE|REPLACE|WITH|SET(?![\s\S]*\bSTATEMENT\b)|RELEASE"
    r"|ROLLBACK(\s+(WORK|TRANSACTION))?\s+TO)\b",
    re.IGNORECASE,
)
"""Nor can SAVEPOINT; but a savepoint that is a mark has to be outside the body's, with which it would end.
SET autocommit=1 ends it, but begins no other one, and SET TRANSACTION must not come after a savepoint."""
_COMMIT = re.compile(
    r"(\s|--[^\n]*\n|/\*((?!\*/).)*\*/)*"
    r"(COMMIT\b|PREPARE\s+TRANSACTION\b|END(\s+(WORK|TRANSACTION))?(\s+AND\b.*)?\s*$)",
    re.IGNORECASE | re.DOTALL,
)
_WORD = re.compile(r"COMMIT|PREPARE|END", re.IGNORECASE)
"""Few texts have one of these."""
_SAVEPOINT_END = re.compile(r"\s*(RELEASE|ROLLBACK(\s+(WORK|TRANSACTION))?\s+TO)\b", re.IGNORECASE)
_BODY = re.compile(r"\s*(BEGIN\s+NOT\b|(CREATE|ALTER)\b.*\bBEGIN\b)", re.IGNORECASE | re.DOTALL)
"""The beginning of a body, as of a trigger: the statements behind it are the body's."""


def may_end(statement: Any) -> bool:
    """Whether the statement may end the transaction; it may also begin another one."""
    if isinstance(statement, _HARMLESS):
        return False
    if (text := _text(statement)) is None:
        return True
    # A driver may be set to send several statements at once.
    if _CANNOT_END.match(text) and ";" not in text:
        return False  # as most are
    text = _unquoted(text).rstrip("; \t\r\n")
    return not _CANNOT_END.match(text) or ";" in text


def commits(statement: Any) -> bool:
    """Whether the statement is a COMMIT, or a text that has one among its statements. The status tells of the
    others afterwards: a procedure may commit."""
    text = _text(statement)
    for each in _unquoted(text).split(";") if text and _WORD.search(text) else ():
        if _COMMIT.match(each):
            return True
        if _BODY.match(each):
            return False
    return False


def ends_savepoint(statement: Any) -> bool:
    """Whether a text ends a savepoint, itself or with one of its statements."""
    text = _text(statement)
    if not text or not _SAVEPOINT_END.search(text):
        return False
    return any(_SAVEPOINT_END.match(each) for each in _unquoted(text).split(";"))


def _text(statement: Any) -> str | None:
    while isinstance(statement, TextualSelect | FromStatement):
        statement = statement.element
    if isinstance(statement, TextClause):
        statement = statement.text
    return statement if isinstance(statement, str) else None


def _unquoted(text: str) -> str:
    """Without what is quoted, and comments. As it is, if that is in doubt: databases differ in what a
    backslash means."""
    bare = _QUOTED.sub(" ", text)
    return text if _QUOTE.search(bare) else bare
