"""Statements of the user's own, which run on the driver before and after the tasks."""

import json
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

from sqlalchemy import Connection, Dialect, Executable, text
from sqlalchemy.exc import CompileError, StatementError

from inbox_outbox_base.errors.codes import is_passing
from inbox_outbox_base.errors.inbox import InvalidOption
from inbox_outbox_base.errors.spark import SparkWriterError
from spark._executor.failures import told

Own = str | Executable


def run(option: str, statements: Sequence[Own], connection: Connection) -> None:
    """Run the statements of an option. The error has no value of a row.

    Raises:
        SparkWriterError: one of them fails.
    """
    for number, each in enumerate(statements):
        try:
            connection.execute(_executable(each))
        except StatementError as error:
            if is_passing(error):
                raise
            raise SparkWriterError(f"{option}[{number}]: {told(error)}") from None


def fingerprint(dialect: Dialect, **options: Sequence[Own]) -> bytes:
    """What stands for these statements: 16 bytes, all 0 if there are none. It does not depend on the values
    of their parameters.

    Raises:
        InvalidOption: the database has no such statement.
    """
    if not any(options.values()):
        return b"\0" * 16
    texts = {option: [_compiled(dialect, option, each) for each in its] for option, its in options.items()}
    return blake2b(json.dumps(texts).encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _compiled(dialect: Dialect, option: str, statement: Own) -> str:
    try:
        return str(_executable(statement).compile(dialect=dialect))
    except CompileError as error:
        raise InvalidOption(f"{option}={statement!r}: {error}") from None


def _executable(statement: Own) -> Any:
    # Otherwise SQLAlchemy takes a colon and a name for a parameter.
    return text(statement.replace(":", "\\:")) if isinstance(statement, str) else statement
