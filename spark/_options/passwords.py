"""Passwords that a function or a command gives, for those that expire."""

import os
import subprocess
from typing import Any

from inbox_outbox_base.errors.spark import SparkWriterError

from .settings import AskedPassword

_PATIENCE = 60.0
"""Seconds for a command."""
_LONGEST = 65_536
"""The most bytes that a command may print: what a pipe holds."""


def given_by(source: AskedPassword) -> str:
    """The password for one connection. No error here has the password, or what a command has printed.

    Raises:
        SparkWriterError: there is none.
    """
    if callable(source):
        found = source()
        if not isinstance(found, str):
            raise SparkWriterError(f"password: the function returned {type(found).__name__}, expected text")
        return found
    try:
        code, printed = _run(source)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SparkWriterError(
            f"password: the command {source[0]!r} did not run to its end: {type(error).__name__}"
        ) from None
    if code:
        raise SparkWriterError(f"password: the command {source[0]!r} ended with exit code {code}")
    found = printed.decode(errors="replace").rstrip("\r\n")
    if not found:
        raise SparkWriterError(f"password: the command {source[0]!r} has printed nothing")
    return found


def _run(source: tuple[str, ...]) -> tuple[int, bytes]:
    """The command's exit code, and what it had printed when it ended."""
    null = subprocess.DEVNULL
    with subprocess.Popen(source, stdin=null, stdout=subprocess.PIPE, stderr=null, bufsize=0) as command:
        try:
            code = command.wait(_PATIENCE)
        except BaseException:
            command.kill()
            raise
        # The command may have left an agent that goes on with the pipe: do not wait for the pipe's end.
        output: Any = command.stdout
        os.set_blocking(output.fileno(), False)
        return code, output.read(_LONGEST) or b""
