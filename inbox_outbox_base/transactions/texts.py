"""What a statement may do to its transaction: a text, or a construct that SQLAlchemy does not know."""

import re
from functools import lru_cache
from typing import Any, NamedTuple

from sqlalchemy import CompoundSelect, Connection, Select, TextClause, UpdateBase
from sqlalchemy.orm import FromStatement
from sqlalchemy.schema import DefaultGenerator
from sqlalchemy.sql.elements import ReleaseSavepointClause, RollbackToSavepointClause, SavepointClause
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.sql.selectable import TextualSelect

from inbox_outbox_base.databases.registry import taking
from inbox_outbox_base.errors.inbox import UnsupportedDatabase

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
    r"""(?<!\w)[eE]'[^'\\]*(?:\\.[^'\\]*)*'|'[^']*'|"[^"]*"|`[^`]*`"""
    r"""|(?<![\w$])\$((?!\d)\w*)\$.*?\$\1\$"""
    r"""|--[^\n]*|/\*.*?\*/""",
    re.DOTALL,
)
"""Quoted text, names and bodies, and comments."""
_QUOTED_WITH_ESCAPES = re.compile(
    r"""'[^'\\]*(?:\\.[^'\\]*)*'|"[^"\\]*(?:\\.[^"\\]*)*"|`[^`]*`"""
    r"""|--(?!\S)[^\n]*|\#[^\n]*|/\*(?!M?!).*?\*/""",
    re.DOTALL,
)
"""The same where a backslash quotes, a # begins a comment, and comments like /*! this */ are run."""
_LEADING = re.compile(r"(\s|--[^\n]*\n|/\*(?!M?!)((?!/\*|\*/).)*\*/)*", re.DOTALL)
"""Comments that are such on every database: some nest them."""
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
_BEGINS = re.compile(r"\b(COMMIT|ROLLBACK|ABORT|END|BEGIN|START|CALL|EXECUTE|PREPARE)\b", re.IGNORECASE)
_SAVEPOINT_END = re.compile(r"\s*(RELEASE|ROLLBACK(\s+(WORK|TRANSACTION))?\s+TO)\b", re.IGNORECASE)
_SAVEPOINT_WORD = re.compile(r"RELEASE|ROLLBACK", re.IGNORECASE)
_NAMES = re.compile(r"\s*USE\b", re.IGNORECASE)
_OPAQUE = re.compile(r"\s*(CALL|EXECUTE|BEGIN\s+NOT)\b", re.IGNORECASE)
_BODY = re.compile(r"\s*(BEGIN\s+NOT\b|(CREATE|ALTER)\b.*\bBEGIN\b)", re.IGNORECASE | re.DOTALL)
"""The beginning of a body, as of a trigger: the statements behind it are the body's."""


class Effects(NamedTuple):
    """What a statement may do to its transaction."""

    may_end: bool
    may_begin_another: bool
    """Whether it may end the transaction and begin another one; a text, by its words."""
    is_opaque: bool = False
    """Whether it may end the transaction, and its words do not say so: it runs a procedure or a prepared
    statement, or SQLAlchemy does not know it."""
    ends_savepoint: bool = False
    """Whether it is a text that ends a savepoint, itself or with one of its statements."""
    rolls_back_to_savepoint: bool = False
    """Whether that is a ROLLBACK TO."""
    changes_names: bool = False
    """Whether it is a text that leads the names of tables to another database."""


_NONE = Effects(may_end=False, may_begin_another=False)
_UNKNOWN = _NONE._replace(may_end=True, is_opaque=True)
_REMEMBERED, _LONGEST = 1_000, 10_000
"""How many texts are not read again, and the most characters of one."""


def effects_of(connection: Connection, statement: Any) -> Effects:
    """All of them."""
    text = statement if isinstance(statement, str) else _text(statement)
    if text is None:
        return _NONE if isinstance(_inner(statement), _HARMLESS) else _UNKNOWN
    read = _effects if len(text) <= _LONGEST else _effects.__wrapped__
    return read(text, connection.dialect.name)


@lru_cache(_REMEMBERED)
def _effects(text: str, dialect: str) -> Effects:
    may = _may_end(text)
    has_savepoint, has_several = _SAVEPOINT_WORD.search(text), ";" in text
    if not (may or has_savepoint or has_several):
        return _NONE
    parts = _statements(text, dialect)
    ends = (
        [found[1].upper() for each in parts if (found := _SAVEPOINT_END.match(each))] if has_savepoint else []
    )
    return Effects(
        may,
        may and any(map(_BEGINS.search, parts)),
        may and any(map(_OPAQUE.match, parts)),
        bool(ends),
        any(each != "RELEASE" for each in ends),
        any(map(_NAMES.match, parts)),
    )


def may_end(statement: Any) -> bool:
    """Whether the statement may end the transaction; it may also begin another one."""
    statement = _inner(statement)
    if isinstance(statement, _HARMLESS):
        return False
    text = _text(statement)
    return text is None or _may_end(text)


def _may_end(text: str) -> bool:
    # A driver may be set to send several statements at once.
    if _CANNOT_END.match(text) and ";" not in text:
        return False  # as most are
    text = _LEADING.sub("", text, count=1).rstrip("; \t\r\n")
    return ";" in text or not _CANNOT_END.match(text)


def commits(connection: Connection, statement: Any) -> bool:
    """Whether the statement is a COMMIT, or a text that has one among its statements. The status tells of the
    others afterwards: a procedure may commit, and a setting may change what a backslash means."""
    text = _text(statement)
    for each in _statements(text, connection.dialect.name) if text and _WORD.search(text) else ():
        if _COMMIT.match(each):
            return True
        if _BODY.match(each):
            return False
    return False


def ends_savepoint(connection: Connection, statement: Any) -> bool:
    """Whether a text ends a savepoint, itself or with one of its statements."""
    return effects_of(connection, statement).ends_savepoint


def _inner(statement: Any) -> Any:
    while isinstance(statement, TextualSelect | FromStatement):
        statement = statement.element
    return statement


def _text(statement: Any) -> str | None:
    statement = _inner(statement)
    if isinstance(statement, TextClause):
        statement = statement.text
    return statement if isinstance(statement, str) else None


def _statements(text: str, dialect: str) -> list[str]:
    """The statements of a text, without what is quoted, and comments."""
    try:
        has_escapes = taking(dialect).has_escapes
    except UnsupportedDatabase:  # another database of the same session
        has_escapes = False
    return (_QUOTED_WITH_ESCAPES if has_escapes else _QUOTED).sub(" ", text).split(";")
