"""Assembles the commands, and turns expected failures into one line and an exit code."""

import os
import sys
from typing import Annotated, NoReturn

import typer
from sqlalchemy.exc import SQLAlchemyError

from inbox.errors import InboxError, InvalidOption, InvalidResult, MessageNotFound, WrongStatus
from inbox_outbox_base.errors import secrets
from inbox_outbox_base.version import __version__

from . import _inbox, _outbox, _repair
from ._exit import EXPLAINED, FAILED, INTERRUPTED, NOT_FOUND, USAGE, WRONG_STATUS
from ._group import CommandGroup
from ._installing import doctor, migrating
from ._operating import (
    auditing,
    checking,
    deciding,
    health,
    outbox_decisions,
    partitioning,
    redriving,
    refusals,
    serving,
    top,
)
from ._running import log, relaying
from ._running.serving import metrics

_NAME = "inbox-outbox"
"""The distribution, and the program in messages and shell completion, also if it was started as a module."""

app = CommandGroup(
    name=_NAME,
    help="Messages that take effect exactly once, and leave if and only if their transaction commits.\n\n"
    "Every option can come from the environment, too: --lease of `outbox relay` from"
    " INBOX_OUTBOX_OUTBOX_RELAY_LEASE.",
    epilog=EXPLAINED,
    context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": "INBOX_OUTBOX"},
    pretty_exceptions_enable=False,
)
app.command("migrate")(migrating.migrate)
app.command("audit")(auditing.audit)
app.command("check")(checking.check)
app.command("decisions")(deciding.decisions)
app.command("doctor")(doctor.doctor)
app.command("health")(health.health)
app.command("metrics")(metrics)
app.command("top")(top.top)
app.command("partitions")(partitioning.partitions)
app.command("redrive")(redriving.redrive)
app.command("web")(serving.web)
app.command("password")(serving.password)
app.add_typer(_inbox.app, name="inbox")
app.add_typer(_outbox.app, name="outbox")
for group, commands in (
    (_inbox.app, refusals.COMMANDS),
    (_inbox.app, _repair.COMMANDS),
    (_outbox.app, outbox_decisions.COMMANDS),
    (_outbox.app, relaying.COMMANDS),
):
    for name, command in commands.items():
        group.command(name)(command)


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        print(f"{_NAME} {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    show_version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit."),
    ] = False,
    log_format: Annotated[
        log.LogFormat,
        typer.Option(
            envvar="INBOX_OUTBOX_LOG_FORMAT",
            show_envvar=True,
            help="How the log on stderr looks: text, or json with one object for each line.",
            metavar="FORMAT",
        ),
    ] = log.LogFormat.TEXT,
) -> None:
    """The options of the program itself."""
    log.choose(log_format)


# The base class of usage errors; typer does not export it, and it is no longer in click.
_WrongUsage: type[Exception] = typer.BadParameter.__bases__[0]


def run() -> NoReturn:
    """Run the command line and exit."""
    try:
        with log.logging_to_stderr():
            code = app(prog_name=_NAME, standalone_mode=False)
            sys.stdout.flush()
    except (InvalidOption, InvalidResult) as error:
        _fail(str(error), USAGE)
    except MessageNotFound as error:
        _fail(str(error), NOT_FOUND)
    except WrongStatus as error:
        _fail(str(error), WRONG_STATUS)
    except InboxError as error:
        _fail(str(error), FAILED)
    except (SQLAlchemyError, ImportError) as error:
        _fail(secrets.reason(error), FAILED)
    except _WrongUsage as error:
        _fail(_usage(error), USAGE)
    except (KeyboardInterrupt, typer.Abort):
        _fail("interrupted", INTERRUPTED)
    except OSError as error:
        # Without this the interpreter would report the error again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _fail("" if isinstance(error, BrokenPipeError) else str(error), FAILED)
    if code == INTERRUPTED:  # typer's exit code for Ctrl-C
        _fail("interrupted", INTERRUPTED)
    sys.exit(code or 0)


def _usage(error: Exception) -> str:
    message: str = getattr(error, "format_message", error.__str__)()
    return message


def _fail(message: str, code: int) -> NoReturn:
    if message:
        log.complain(_NAME, message)
    sys.exit(code)
