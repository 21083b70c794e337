"""Programs of this repository, run as a user would run them."""

import subprocess
import sys
from pathlib import Path

from sqlalchemy import URL

ROOT = Path(__file__).parents[2]


def command(module: str, *arguments: str, url: URL | None = None) -> list[str]:
    """The command that runs a module on a database, with warnings as errors."""
    where = [] if url is None else ["--url", url.render_as_string(hide_password=False)]
    return [sys.executable, "-W", "error", "-m", module, *where, *arguments]


def run(arguments: list[str], timeout: float = 120) -> subprocess.CompletedProcess[str]:
    """Run a program in the repository to its end, and return its output."""
    return subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, timeout=timeout, check=False)


def complaints(stderr: str) -> str:
    """What a program wrote to stderr, without warnings about settings that make the test servers fast."""
    lines = stderr.splitlines(keepends=True)
    return "".join(
        line for line in lines if ": a crash can lose messages that were acknowledged: " not in line
    )
