"""Passwords that a function or a command gives, for those that expire."""

import subprocess

from inbox_outbox_base.errors.spark import SparkWriterError

from .settings import AskedPassword

_PATIENCE = 60.0
"""Seconds for a command."""


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
        done = subprocess.run(
            source, stdin=subprocess.DEVNULL, capture_output=True, timeout=_PATIENCE, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SparkWriterError(
            f"password: the command {source[0]!r} did not run to its end: {type(error).__name__}"
        ) from None
    if done.returncode:
        raise SparkWriterError(f"password: the command {source[0]!r} ended with exit code {done.returncode}")
    return done.stdout.decode(errors="replace").rstrip("\r\n")
