"""The log of all commands: lines on stderr for people or for programs, without passwords."""

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum

from inbox_outbox_base.errors import secrets


class LogFormat(StrEnum):
    """How log lines look."""

    TEXT = "text"
    JSON = "json"


class _Lines(logging.Formatter):
    """Lines in the chosen format."""

    chosen = LogFormat.TEXT

    def format(self, record: logging.LogRecord) -> str:
        if self.chosen is LogFormat.TEXT:
            return secrets.strike_out(super().format(record))
        error = None
        if record.exc_info:
            error = self.formatException(record.exc_info)
        return _json(record.created, record.levelname, record.name, record.getMessage(), error)


_lines = _Lines("%(asctime)s %(levelname)s %(message)s")


def choose(log_format: LogFormat) -> None:
    """Log in this format from now on."""
    _lines.chosen = log_format


@contextmanager
def logging_to_stderr() -> Iterator[None]:
    """While the block runs, log to stderr what programs log: from WARNING on, or their loggers' levels."""
    choose(LogFormat.TEXT)
    handler = logging.StreamHandler()
    handler.setFormatter(_lines)
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)


@contextmanager
def telling(*names: str) -> Iterator[None]:
    """While the block runs, these loggers log from INFO on, and the client of RabbitMQ nothing: it logs each
    attempt to connect, and a relay does so once a minute."""
    levels = dict.fromkeys(names, logging.INFO) | {"aiormq": logging.CRITICAL}
    before = {name: logging.getLogger(name).level for name in levels}
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
    try:
        yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)


def complain(name: str, message: str) -> None:
    """Print the one line of a failed command."""
    text = " ".join(secrets.strike_out(message).split())
    if _lines.chosen is LogFormat.JSON:
        print(_json(datetime.now(UTC).timestamp(), "ERROR", name, text), file=sys.stderr)
    else:
        print(f"{name}: {text}", file=sys.stderr)


def _json(time: float, level: str, logger: str, message: str, error: str | None = None) -> str:
    at = datetime.fromtimestamp(time, UTC).isoformat(timespec="milliseconds")
    line = {"time": at, "level": level, "logger": logger, "message": secrets.strike_out(message)}
    if error is not None:
        line["error"] = secrets.strike_out(error)
    return json.dumps(line)
