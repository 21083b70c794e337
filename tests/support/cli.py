"""The command line, run as a user would run it."""

import io
import json
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import URL, Engine, insert

from inbox.schema import tables
from inbox_outbox.__main__ import main
from tests.support.forked import run_forked
from tests.support.program import command

Done = subprocess.CompletedProcess[str]


def inbox_outbox(*arguments: str, url: URL | str | None = None) -> Done:
    """Run `inbox-outbox` to its end, in its own process."""
    command = line(*arguments, url=url)
    return Done(command, *run_forked(main, command[command.index("inbox_outbox") :]))


class Terminal(io.StringIO):
    """What a program writes to it, where it asks whether that is a terminal."""

    def isatty(self) -> bool:
        return True


def in_this_process(*arguments: str, url: str | None = None, out: io.StringIO | None = None) -> Done:
    """Run it without starting another Python: for the many ways to use it wrongly."""
    command = line(*arguments, url=url)
    before, sys.argv = sys.argv, command[command.index("inbox_outbox") :]
    out, err = out or io.StringIO(), io.StringIO()
    try:
        with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
            main()
    finally:
        sys.argv = before
    assert isinstance(ended.value.code, int)
    return Done(command, ended.value.code, out.getvalue(), err.getvalue())


def line(*arguments: str, url: URL | str | None = None) -> list[str]:
    """The command line that `inbox_outbox` runs."""
    text = url.render_as_string(hide_password=False) if isinstance(url, URL) else url
    return [*command("inbox_outbox"), *arguments, *([] if text is None else ["--url", text])]


def succeeded(done: Done) -> str:
    """The output of a program that must succeed and write nothing to stderr."""
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def as_json(done: Done) -> Any:
    """The JSON that a program printed; it must print nothing else."""
    return json.loads(succeeded(done))


def error(done: Done) -> str:
    """The one line that a failed program printed."""
    assert done.returncode != 0
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    (only,) = done.stderr.splitlines()
    assert only.startswith("inbox-outbox: ")
    return only.removeprefix("inbox-outbox: ")


def fill(engine: Engine, count: int, age: timedelta = timedelta(0), consumer: str = "billing") -> None:
    """Insert rows `consumer`-0, -1, ..., accepted this long ago."""
    rows = [
        {
            "consumer": consumer,
            "key": f"{consumer}-{number}",
            "claim": bytes(16),
            "accepted_at": datetime.now(UTC) - age,
        }
        for number in range(count)
    ]
    with engine.begin() as connection:
        connection.execute(insert(tables().message), rows)
