"""`inbox-outbox doctor`: is everything installed as it should be?"""

from collections.abc import Iterator
from platform import python_version
from typing import TYPE_CHECKING, Annotated

import typer

from inbox_outbox._exit import ILL
from inbox_outbox._print import as_json, grid
from inbox_outbox_base.checks.retention import DAYS_AHEAD
from inbox_outbox_base.version import __version__

from . import installed
from .installed import InstallationFault

if TYPE_CHECKING:
    from inbox import ConsumerOverview

_LONG = 86_400.0
"""Seconds past the retention after which a purge is overdue."""


def doctor(
    url: Annotated[
        str | None,
        typer.Option(
            envvar="INBOX_OUTBOX_URL",
            show_envvar=True,
            metavar="URL",
            help="Look at the tables of this database, too.",
        ),
    ] = None,
    schema: Annotated[
        str | None, typer.Option(help="PostgreSQL only: the schema of the tables.", metavar="NAME")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Look at the installation, and say what to do.

    Somebody else's packages in the place of ours, files that have changed; with --url, tables of another
    version, what `check` refuses, and a purge that is overdue. Exit code 15 if something is wrong. `health`
    says how the messages are.
    """
    complaints = [
        *installed.foreign_packages(),
        *installed.changed_files(),
        *(() if url is None else _tables(url, schema)),
    ]
    extras = installed.complete_extras()
    if json:
        found = [{"about": each.about, "why": each.why} for each in complaints]
        seen = {"version": __version__, "python": python_version(), "extras": extras}
        as_json({**seen, "complaints": found})
    else:
        print(f"inbox-outbox {__version__}, Python {python_version()}, extras: {', '.join(extras) or 'none'}")
        if complaints:
            grid(("about", "what is wrong"), [(each.about, each.why) for each in complaints])
        else:
            print("nothing is wrong")
    if complaints:
        raise typer.Exit(ILL)


def _tables(url: str, schema: str | None) -> Iterator[InstallationFault]:
    """What is wrong with the tables."""
    # Here, because what comes before says whether these packages are ours.
    import inbox
    import outbox
    from inbox._migrating.version import current, reached
    from inbox.errors import InboxError, TablesMissing, UnsupportedDatabase
    from inbox.schema import REVISION
    from inbox_outbox._connect import engine_at

    with engine_at(url, schema) as engine:
        with engine.connect() as connection:
            revision = current(connection, schema)
            if revision is None:
                why = "there are none: create them with inbox-outbox migrate"
                try:
                    reached(connection, schema)
                except UnsupportedDatabase as error:  # what migrate would say
                    why = str(error)
                yield InstallationFault("tables", why)
                return
        if revision != REVISION:
            todo = "run inbox-outbox migrate" if revision < REVISION else "install the version that made them"
            yield InstallationFault(
                "tables", f"their revision is {revision}, this version is for {REVISION}: {todo}"
            )
            return
        for name, half in {"inbox": inbox.check, "outbox": outbox.check}.items():
            try:
                report = half(engine, schema=schema)
            except (TablesMissing, outbox.errors.TablesMissing):  # a database may have only one half
                continue
            except (InboxError, outbox.errors.OutboxError) as error:
                yield InstallationFault(name, str(error))
                continue
            refused = (each for each in report.findings if each.result == "refused")
            yield from (InstallationFault(f"{name}: {each.what}", each.why) for each in refused)
        for each in inbox.overview(engine, schema=schema).consumers:
            yield from _unpurged(each)


def _unpurged(found: "ConsumerOverview") -> Iterator[InstallationFault]:
    is_late, ahead = found.overdue > _LONG, found.partitions_ahead
    if ahead is None:
        why = (
            f"keys are {found.overdue / _LONG:.0f} d past their retention, and no purge deletes them:"
            " run inbox-outbox inbox purge --every 1h, or relays with --purge-every"
        )
    else:
        is_late = is_late or ahead < DAYS_AHEAD.total_seconds()
        why = (
            "its partitions end within two days, or old keys are not forgotten: run inbox-outbox partitions"
            " every day, as the owner of the tables, and purges for keys from before the first one"
        )
    if is_late:
        yield InstallationFault(f"consumer {found.consumer}", why)
