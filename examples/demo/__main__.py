"""The demo's command line: ``python -m examples.demo``."""

import argparse
import sys
from collections.abc import Sequence
from contextlib import nullcontext

from rich.console import Console
from sqlalchemy import URL, Engine, create_engine
from sqlalchemy.exc import SQLAlchemyError

from examples import _spark
from examples._common import add_url, database, forget, url_of
from examples.demo import __doc__ as about
from examples.demo import flights, page, report, stream, third_act, totals
from examples.demo.broker import Broker
from examples.demo.fleet import Fleet
from examples.demo.flights import Departure
from examples.demo.handler import CONSUMER, Handler, with_inbox, without_inbox
from examples.demo.report import Run
from inbox import migration
from inbox.errors import InboxError

EXACT, WRONG, FAILED, INTERRUPTED = 0, 1, 2, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo: 0 if inbox and outbox were exact, 1 if not, 2 if it could not run."""
    parser = _parser()
    options = parser.parse_args(arguments)
    given = url_of(parser, options)
    console = Console()
    try:
        departures = flights.read()
        show_key(console, departures)
        with database(given) as url, page.shown(console, url) if options.web else nullcontext():
            return acts(console, url, departures[: options.messages], options)
    except KeyboardInterrupt:
        console.print("interrupted")
        return INTERRUPTED
    except SQLAlchemyError as error:
        # The driver's text only: SQLAlchemy adds the statement and its parameters.
        return _failed(console, str(getattr(error, "orig", None) or error))
    except (ModuleNotFoundError, RuntimeError, InboxError) as error:
        return _failed(console, str(error))


def acts(console: Console, url: URL, departures: Sequence[Departure], options: argparse.Namespace) -> int:
    """Run all acts, or the chosen one; the exit code is that of the worst."""
    codes = []
    if options.act in (None, 1):
        codes.append(compare(console, url, departures, options.workers))
    if options.act in (None, 2):
        codes.append(act_two(console, url, departures, required=options.act == 2))
    if options.act in (None, 3):
        codes.append(verdict(console, third_act.run(console, url, departures), "the outbox"))
    return max(codes)


def show_key(console: Console, departures: Sequence[Departure]) -> None:
    """Print which columns identify a departure, and that none of them can be left out."""
    total = len(departures)
    console.print(f"Business key: {', '.join(flights.KEY)}")
    console.print(f"  distinct: {flights.distinct(departures):,} of {total:,}")
    for name in flights.KEY:
        console.print(f"  without {name}: {flights.distinct(departures, without=name):,}")


def compare(console: Console, url: URL, departures: Sequence[Departure], workers: int) -> int:
    """Run the stream without and with the inbox, and show both."""
    chunk = max(1, min(200, len(departures) // 20))
    deliveries = stream.deliveries(departures, chunk)
    console.print(
        f"{len(departures):,} messages in {len(deliveries):,} deliveries, {chunk} at a time to a worker"
    )
    console.print(f"{workers} workers on {place(url)}", markup=False)
    expected = totals.of(departures)
    engine = create_engine(url)
    try:
        with report.progress(console) as bars:

            def run(label: str, handler: Handler) -> Run:
                totals.reset(engine, expected)
                forget(engine, CONSUMER)
                with Fleet(url, handler, workers) as fleet:
                    task = bars.add_task(label, total=len(deliveries))
                    broker = Broker(fleet, deliveries, chunk, lambda done: bars.update(task, completed=done))
                    delivered = broker.run()
                return Run(delivered, totals.read(engine))

            migration.migrate(engine)
            without = run("without inbox", without_inbox)
            with_it = run("with inbox", with_inbox)
    finally:
        _clean_up(engine)
    console.print(report.table(expected, without, with_it))
    return verdict(console, with_it.is_exact(expected), "the inbox")


def act_two(console: Console, url: URL, departures: Sequence[Departure], *, required: bool) -> int:
    """Run act two; skip it where Spark cannot run, unless it is required."""
    reason = _spark.missing()
    if reason is None:
        from examples.demo import second_act  # only now: the import is slow, and act one does not need it

        reason = second_act.missing(url)
        if reason is None:
            return verdict(console, second_act.run(console, url, departures), "the inbox writer")
    if required:
        raise RuntimeError(reason)
    console.print(f"Act two (Spark) is left out: {reason}.", markup=False, soft_wrap=True)
    return EXACT


def place(url: URL) -> str:
    """A description of the database, without any part of the URL that may be secret."""
    if url.get_backend_name() == "sqlite":
        if url.database in (None, "", ":memory:"):
            raise RuntimeError("workers cannot share an SQLite database in memory; use a file")
        return f"sqlite, file {url.database}"
    return f"{url.get_backend_name()}, {url.host}:{url.port or 'default port'}, database {url.database}"


def verdict(console: Console, is_exact: bool, what: str) -> int:
    """Print the last line, and return the exit code."""
    if is_exact:
        console.print(f"With {what} every departure counts exactly once.", style="green")
        return EXACT
    console.print(f"WRONG: with {what} some totals are off.", style="bold red")
    return WRONG


def _clean_up(engine: Engine) -> None:
    forget(engine, CONSUMER)
    totals.metadata.drop_all(engine)
    engine.dispose()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m examples.demo",
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_url(parser)
    parser.add_argument("--act", type=int, choices=(1, 2, 3), help="only this one (default: all)")
    parser.add_argument("--messages", type=_positive, metavar="N", help="only the first N (default: all)")
    parser.add_argument("--workers", type=_positive, default=4, metavar="N", help="processes (default: 4)")
    parser.add_argument("--web", action="store_true", help="meanwhile, show the database in a web page")
    return parser


def _failed(console: Console, reason: str) -> int:
    console.print(f"The demo could not run: {reason}", style="bold red", markup=False, soft_wrap=True)
    return FAILED


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


if __name__ == "__main__":
    sys.exit(main())
