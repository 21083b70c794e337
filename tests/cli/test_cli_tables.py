"""The tables of the commands, on terminals of several widths."""

import json
import re
from contextlib import redirect_stdout

import pytest
from rich.cells import cell_len
from sqlalchemy import Engine

import outbox
from inbox import Inbox, SqlStore, Status, set_policy
from inbox_outbox._print import grid
from outbox import Outbox, Unavailable
from tests.cli.test_cli_repair import rows
from tests.support.cases import case
from tests.support.cli import Terminal, in_this_process
from tests.support.database import Database
from tests.support.on_servers import on
from tests.support.outbox_publishers import Recorder, relay
from tests.support.status_mode.stores import end, request

WIDTHS = 60, 80, 200
CONSUMER = "consumer-" + "c" * 100
TOPIC = "topic-" + "t" * 100
KEYS = "order-" + "k" * 400, "キー" * 60
ERROR = "queue 'orders' is full; " * 20
COMMANDS = {
    "outbox status": ("pending", "oldest", "of no relay", "paused"),
    "outbox buckets": ("generation", "messages"),
    "outbox peek": ("topic", "attempts", "error"),
    f"audit --topic {TOPIC} --consumer {CONSUMER} --grace 0s": ("on the way", "inbox status"),
    "inbox status": ("in the last hour", "dead retention"),
    "inbox list": ("consumer", "attempts"),
    f"inbox show {CONSUMER} {KEYS[0]}": ("column", "claim"),
    "check": ("result", "why"),
}


def fill_both(engine: Engine) -> list[str]:
    """Make rows with long names, keys and errors; return the ids of the outbox's messages."""
    with engine.begin() as connection:
        ids = [Outbox().publish(connection, topic=TOPIC, payload=b"1", key=key) for key in KEYS]
        for key in KEYS:
            Inbox(CONSUMER).accept(connection, key)
    relay(engine, Recorder(lambda _: Unavailable(ERROR, 60.0)), keep_sent=60)
    outbox.pause(engine, TOPIC)
    end(SqlStore(engine), SqlStore(engine).claim(request("a")), Status.DEAD)
    set_policy(engine, CONSUMER, mode="exactly-once", retention=86_400)
    return ids


def shown(command: str, url: str) -> list[str]:
    """The lines that a command prints on a terminal, without colours."""
    done = in_this_process(*command.split(), url=url, out=Terminal())
    assert (done.returncode in (0, 6), done.stderr) == (True, "")
    return re.sub(r"\x1b\[[0-9;]*m", "", done.stdout).splitlines()


@on("sqlite")
def test_tables(migrated: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables are not wider than the terminal. Long topics, keys and errors are folded there; headings and
    ids stay whole, and nothing is cut off."""
    monkeypatch.setenv("TERM", "xterm")
    ids = fill_both(migrated.engine())
    url = migrated.url.render_as_string(hide_password=False)
    for width in WIDTHS:
        monkeypatch.setenv("COLUMNS", str(width))
        for command, headings in COMMANDS.items():
            with case((width, command)):
                lines = [line for line in shown(command, url) if line[:1] in "│┃├└┏"]
                assert max(map(cell_len, lines)) <= width
                words = set(re.split(r"[\s│┃]+", " ".join(lines)))
                for heading in headings:
                    assert {*heading.split()} <= words
                assert not [line for line in lines if "…" in line]
                if "peek" in command:
                    assert {*ids} <= words
                    assert "".join(lines).count("キ") == 60


@on("sqlite")
def test_a_pipe(migrated: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe or a file gets one line for each row, also if colours are asked for."""
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("FORCE_COLOR", "1")
    ids = fill_both(migrated.engine())
    url = migrated.url.render_as_string(hide_password=False)
    lines = in_this_process("outbox", "peek", url=url).stdout.splitlines()
    for message, key in zip(ids, KEYS, strict=True):
        [line] = [each for each in lines if message in each]
        assert key in line
        assert ERROR.strip() in line
    found = json.loads(in_this_process("outbox", "peek", "--json", url=url, out=Terminal()).stdout)
    assert [each["id"] for each in found] == ids


def test_short_values_stay_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a table has to be narrow, headings and texts are folded at words; ids, short values, and words of
    ordinary length are not broken."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    message = "01a21e8e-7415-7242-82cd-e8bba04f8aaf"
    row = message, "order-1", "14 d ago", "waiting, again in 15 min"
    with redirect_stdout(Terminal()) as shown:
        grid(("id", "inbox key", "since then", "state"), [row])
    first, *others = rows(re.sub(r"\x1b\[[0-9;]*m", "", shown.getvalue()))
    assert first == [*row[:3], "waiting,"]
    assert [" ".join(column).strip() for column in zip(*others, strict=True)] == [
        "",
        "",
        "",
        "again in 15 min",
    ]
