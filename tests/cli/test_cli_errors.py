"""Errors of the command line: one line, an exit code, and no password."""

import os
import subprocess
import sys
from urllib.parse import quote

import pytest
from sqlalchemy import URL, make_url

from examples.embedded_postgres import free_port
from inbox_outbox_base.errors import secrets
from tests.support.cli import Done, error, in_this_process, inbox_outbox, line
from tests.support.database import Database
from tests.support.on_servers import BOTH_MYSQL, each_on, on
from tests.support.program import ROOT

SECRET = "s3cr3t-P@ss/w:ord%"  # noqa: S105 - of nobody
QUOTED = quote(SECRET, safe="")
COMMANDS = (
    ["migrate"],
    ["inbox", "status"],
    ["inbox", "show", "billing", "1"],
    ["inbox", "purge"],
    ["outbox", "status"],
    ["outbox", "relay", "--to", "amqp://127.0.0.1:1"],
)


def refused(*arguments: str, url: URL | str | None = None, code: int) -> str:
    """Run a command that has to fail with this exit code; return its one line, which must not contain the
    password in any form."""
    return judged(inbox_outbox(*arguments, url=url), code)


def misused(*arguments: str, url: str | None = "sqlite://") -> str:
    """Run a command with wrong usage; return its one line, which must not contain the password in any
    form."""
    return judged(in_this_process(*arguments, url=url), code=2)


def judged(done: Done, code: int) -> str:
    """Check a failed command; return its one line."""
    message = error(done)
    assert done.returncode == code, message
    for form in (SECRET, QUOTED, "P@ss", "s3cr3t"):
        assert form not in message
    return message


@each_on(
    "postgresql",
    "command",
    [(command,) for command in COMMANDS],
    [(["inbox", "status"],)],
    among=BOTH_MYSQL,
)
def test_a_wrong_password(database: Database, command: list[str]) -> None:
    """If the server rejects the login, the exit code is 1, and the error has the server's message and its
    address."""
    url = database.url.set(username="nobody_here", password=SECRET)
    message = refused(*command, url=url, code=1)
    assert "nobody_here" in message
    assert str(url.host) in message
    assert str(url.port) in message


@pytest.mark.parametrize("scheme", ["postgresql", "mysql", "mariadb"])
def test_an_unreachable_host(scheme: str) -> None:
    """If no server answers at the address, the exit code is 1."""
    url = f"{scheme}://user:{QUOTED}@127.0.0.1:{free_port()}/shop"
    assert "127.0.0.1" in refused("inbox", "status", url=url, code=1)


def test_a_file_that_cannot_be_opened() -> None:
    """The same for a file that cannot be opened."""
    assert "unable to open" in refused("migrate", url="sqlite:////nowhere/at-all.db", code=1)


@on("sqlite")
def test_missing_tables(database: Database) -> None:
    """If the tables are missing, the error names the command that creates them; the exit code is 1. (`relay`
    is left out: it writes log lines first.)"""
    url = database.url.render_as_string(hide_password=False)
    others = ("inbox list", "inbox retry billing 1", "outbox peek", "outbox pause", "outbox retry 1")
    for command in [*COMMANDS[1:-1], *(each.split() for each in others)]:
        message = judged(in_this_process(*command, url=url), code=1)
        assert "create it with `inbox-outbox migrate --url URL`" in message, command
    assert in_this_process("migrate", "--feature", "inbox", url=url).returncode == 0
    assert "no messages of status-table mode" in in_this_process("inbox", "list", url=url).stdout


@pytest.mark.parametrize("extra", [[], ["--sql"]])
@pytest.mark.parametrize("scheme", ["oracle", "mssql+pyodbc", "nonsense"])
def test_an_unknown_dialect(scheme: str, extra: list[str]) -> None:
    """An unsupported database is rejected by name; the exit code is 1."""
    done = in_this_process("migrate", *extra, url=f"{scheme}://user:{QUOTED}@host/shop")
    message = judged(done, code=1)
    assert message.startswith(f"dialect={scheme.split('+')[0]!r}: only postgresql, mysql, mariadb, sqlite ")
    assert extra or message.endswith("; write a URL like postgresql://user@host/database")


@pytest.mark.parametrize(
    ("scheme", "said"),
    [
        (
            "postgresql+pg8000",
            "write postgresql:// and install inbox-outbox[binary] (No module named 'pg8000')",
        ),
        ("mysql+pyodbc", "write mysql:// and install inbox-outbox[mysql] (No module named 'pyodbc')"),
        ("sqlite+pysqlcipher", "write sqlite:// (No module named 'pysqlcipher3')"),
    ],
)
def test_a_missing_driver(scheme: str, said: str) -> None:
    """If the driver is not installed, the error names it, and says what to type and to install instead; the
    exit code is 1."""
    message = refused("migrate", url=f"{scheme}://user:{QUOTED}@/shop", code=1)
    assert message == f"cannot load the driver of {scheme}; {said}"


@pytest.mark.parametrize(
    ("scheme", "hidden", "extra"),
    [("postgresql", "psycopg", "binary"), ("postgres", "psycopg", "binary"), ("mysql", "pymysql", "mysql")],
)
def test_our_driver_is_missing(monkeypatch: pytest.MonkeyPatch, scheme: str, hidden: str, extra: str) -> None:
    """For a URL that names no driver, the error names ours and the extra that installs it."""
    monkeypatch.setitem(sys.modules, hidden, None)
    message = judged(in_this_process("migrate", url=f"{scheme}://user:{QUOTED}@host/shop"), code=1)
    dialect = "postgresql" if extra == "binary" else scheme
    assert message.startswith(
        f"cannot load the driver of {dialect}+{hidden}; install inbox-outbox[{extra}] ("
    )


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("postgresql+nonsense://host", "there is no postgresql+nonsense; write postgresql:// and install"),
        (
            "postgresql+asyncpg://host?ssl=require&command_timeout=5",
            "postgresql+asyncpg: command_timeout= has no counterpart in psycopg: write postgresql:// with",
        ),
        (
            "mysql+asyncmy://host?connect_timeout=5",
            "mysql+asyncmy: connect_timeout= has no counterpart in pymysql: write mysql:// with its options",
        ),
        ("postgresql+psycopg_async://host", "postgresql+psycopg_async is asynchronous; write postgresql://"),
    ],
)
def test_a_driver_that_cannot_be_used(url: str, said: str) -> None:
    """The error says what to type instead; the exit code is 2."""
    assert misused("inbox", "status", url=url).startswith(f"--url: {said}")


@pytest.mark.parametrize(
    ("server", "driver", "options"),
    [
        ("postgresql", "asyncpg", {"ssl": "prefer", "prepared_statement_cache_size": "0"}),
        ("postgresql", "psycopg2", {"sslmode": "prefer", "application_name": "shop"}),
        ("mariadb", "asyncmy", {"charset": "utf8mb4"}),
        ("mariadb", "mysqldb", {"charset": "utf8mb4", "binary_prefix": "true"}),
        ("sqlite", "aiosqlite", {}),
    ],
    indirect=["server"],
)
def test_the_address_of_a_program_with_another_driver(
    migrated: Database, driver: str, options: dict[str, str]
) -> None:
    """A command takes the same address, and uses our driver, whether or not the other one is there."""
    url = migrated.url.set(drivername=f"{migrated.url.get_backend_name()}+{driver}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, driver, None)
        address = url.update_query_dict(options).render_as_string(hide_password=False)
        done = in_this_process("outbox", "status", "--json", url=address)
    assert done.returncode == 0, error(done)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "shop",
        f"user:{QUOTED}@host/shop",
        f"postgresql:/user:{QUOTED}@host/shop",
        f"postgresql://user:{SECRET}@host/shop",
        "postgresql://user:s3cr3t@P@ss@host/shop",
        f"postgresql://user:{QUOTED}@host:port/shop",
        f"mysql://user:{QUOTED}@127.0.0.1/shop?no_such_option=1",
        f"mysql://user:{QUOTED}@127.0.0.1/shop?connect_timeout=soon",
        f"sqlite+aiosqlite://user:{QUOTED}@/shop",
    ],
)
def test_a_bad_address(url: str) -> None:
    """An invalid URL is a usage error with exit code 2, and the error does not repeat it."""
    assert misused("inbox", "status", url=url).startswith("--url: ")


@pytest.mark.parametrize(
    "arguments",
    [
        ["migrate", f"postgresql://user:{SECRET}@host/shop"],
        ["inbox", "show", f"postgresql://user:{QUOTED}@host/shop"],
        ["inbox", "purge", "--batch", f"postgresql://user:{SECRET}@host/shop"],
        ["inbox", "purge", "--older-than", f"postgresql://user:{QUOTED}@host/shop"],
        ["inbox", "purge", "--budget", f"postgresql://host/shop?password={QUOTED}"],
        ["migrate", "--to", f"postgresql://user:{SECRET}@host/shop"],
        [f"postgresql://user:{SECRET}@host/shop"],
    ],
)
def test_an_address_in_the_wrong_place(arguments: list[str]) -> None:
    """A URL given in the wrong place is a usage error; its password is hidden there too."""
    misused(*arguments, url=None if len(arguments) == 1 else "sqlite://")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["purge", "--batch", "0"], "--batch=0: expected a whole number, one or more"),
        (["purge", "--batch", "-5"], "--batch=-5: expected a whole number, one or more"),
        (["purge", "--batch", "many"], "--batch"),
        (["purge", "--batch", str(2**64)], f"--batch={2**64}: expected at most 2147483647"),
        (["list", "--limit", str(2**31)], f"--limit={2**31}: expected at most 2147483647"),
        (["purge", "--older-than", "7"], "--older-than='7': expected a time such as 30s"),
        (["purge", "--older-than", ""], "--older-than='': expected a time such as 30s"),
        (["purge", "--older-than", "-1d"], "--older-than='-1d': expected"),
        (["purge", "--older-than", f"{'9' * 5_000}d"], "expected at most 36500d"),
        (["purge", "--older-than", "9999999d"], "--older-than='9999999d': expected at most 36500d"),
        (["purge", "--budget", "1w"], "--budget='1w': expected a time such as 30s, 15m, 1h30m, 7d or PT10M"),
        (["purge", "--budget", "30m1h"], "--budget='30m1h': expected a time such as 30s"),
        (["purge", "--budget", "P1M"], "--budget='P1M': expected a time such as 30s"),
        (["purge", "--budget", "P1DT"], "--budget='P1DT': expected a time such as 30s"),
        (["purge", "--budget", "P"], "--budget='P': expected a time such as 30s"),
        (["purge", "--budget", f"P{'9' * 5_000}D"], "expected at most 36500d"),
        (["purge", "--oldest-unconsumed", "yesterday"], "--oldest-unconsumed='yesterday': expected"),
        (["purge", "--consumer", ""], "--consumer='': expected 1 to 128 bytes"),
        (["purge", "--nonsense"], "No such option"),
        (["show", "billing"], "Missing argument"),
        (["show", "billing", ""], "expected 1 to 512 bytes"),
        (["show", "billing", "k" * 513], "expected 1 to 512 bytes"),
        (["nonsense"], "No such command"),
    ],
)
def test_wrong_usage(arguments: list[str], said: str) -> None:
    """A wrong option is a usage error with exit code 2, in one line that names the option."""
    assert said in misused("inbox", *arguments, url=None if arguments == ["nonsense"] else "sqlite://")


def test_the_inbox_elsewhere_has_a_bad_address() -> None:
    """An error about the address of a second database names its option."""
    arguments = "audit", "--topic", "orders", "--consumer", "billing", "--inbox-url", "shop"
    assert misused(*arguments).startswith("--inbox-url: expected something like postgresql://")


def test_no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any URL the error names the option and the environment variable."""
    monkeypatch.delenv("INBOX_OUTBOX_URL", raising=False)
    message = misused("inbox", "status", url=None)
    assert "--url" in message
    assert "INBOX_OUTBOX_URL" in message


def test_an_unknown_revision() -> None:
    """A revision that does not exist is a usage error, which lists those that do."""
    for options in ([], ["--sql"]):
        assert "one of base, 0001" in misused("migrate", "--to", "0815", *options)


def test_nobody_reads_the_output() -> None:
    """If the reader closes the pipe, the program ends without a message."""
    process = subprocess.Popen(
        line("migrate", "--sql", url="sqlite://"),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(60) == 1


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")  # noqa: PTH110
def test_output_that_cannot_be_written() -> None:
    """If the disk is full, the error is one line, and the exit code is 1."""
    with open("/dev/full", "w") as full:  # noqa: PTH123
        done = subprocess.run(
            line("migrate", "--sql", url="sqlite://"),
            cwd=ROOT,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("password", ["a", "pass word", SECRET, "YES", "\\d(+", "ünï"])
def test_striking_out(monkeypatch: pytest.MonkeyPatch, password: str) -> None:
    """A password is hidden both in plain form and as URLs write it; a short one does not mask other words of
    the message."""
    monkeypatch.setattr(secrets, "_known", set())
    secrets.remember(URL.create("postgresql", "user", password, "host"))
    forms = (password, quote(password, safe=""), repr(password))
    shown = secrets.strike_out(f"Access denied at table: {', '.join(forms)}; password={password}")
    assert shown.startswith("Access denied at table: ***, ***, '***'; ")
    assert not shown.endswith(password)


def test_striking_out_what_the_query_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Passwords in the query of a URL are hidden, too."""
    monkeypatch.setattr(secrets, "_known", set())
    secrets.remember(make_url("postgresql://host/shop?password=hunter2"))
    assert secrets.strike_out("is it hunter2?") == "is it ***?"
