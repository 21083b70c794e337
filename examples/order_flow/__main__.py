"""The order flow's command line: ``python -m examples.order_flow``."""

import argparse
import random
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.progress import Progress
from sqlalchemy import URL, Engine, create_engine
from sqlalchemy.exc import SQLAlchemyError

from examples._common import add_url, database, url_of
from examples.order_flow import __doc__ as about
from examples.order_flow import report, trial
from examples.order_flow.trial import Plan, Result
from examples.order_flow.worker import VARIANTS
from inbox import migration
from inbox.errors import InboxError

KEPT, BROKEN, FAILED, INTERRUPTED = 0, 1, 2, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the variants; return 0 if every promise was kept, 1 if not, 2 if they could not run."""
    parser = _parser()
    options = parser.parse_args(arguments)
    given = url_of(parser, options)
    random.seed(options.seed)
    console = Console()
    try:
        with database(given) as url:
            return compare(console, url, Plan(options.orders, options.kills))
    except KeyboardInterrupt:
        console.print("interrupted")
        return INTERRUPTED
    except SQLAlchemyError as error:
        # The driver's text only: SQLAlchemy adds the statement and its parameters.
        return _failed(console, str(getattr(error, "orig", None) or error))
    except (RuntimeError, InboxError) as error:
        return _failed(console, str(error))


def compare(console: Console, url: URL, plan: Plan) -> int:
    """Run one variant after the other, and show all results."""
    if url.get_backend_name() != "postgresql":
        raise RuntimeError(f"its queue needs PostgreSQL, and this is {url.get_backend_name()}")
    refused = plan.orders - plan.confirmed
    console.print(f"{plan.orders} orders; {refused} cannot be shipped, and some messages are delivered twice")
    console.print(f"{trial.WORKERS} workers, killed {plan.kills} times in each variant and restarted")
    engine = create_engine(url)
    try:
        migration.migrate(engine)
        with report.progress(console) as bars:
            results = {variant: one(engine, variant, plan, bars) for variant in VARIANTS}
    finally:
        trial.clean_up(engine)
        engine.dispose()
    console.print(report.table(plan, results))
    broken = report.broken(plan, results)
    for promise in broken:
        console.print(f"BROKEN: {promise}", style="bold red", soft_wrap=True)
    if not broken:
        console.print("Every promise was kept.", style="green")
    return BROKEN if broken else KEPT


def one(engine: Engine, variant: str, plan: Plan, bars: Progress) -> Result:
    """Run one variant, with its own progress bar."""
    task = bars.add_task(variant, total=plan.orders)
    return trial.run(engine, variant, plan, lambda done: bars.update(task, completed=done))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m examples.order_flow",
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_url(parser)
    parser.add_argument("--orders", type=_positive, default=30, metavar="N", help="how many (default: 30)")
    parser.add_argument(
        "--kills", type=_positive, default=5, metavar="N", help="workers to kill in each variant (default: 5)"
    )
    parser.add_argument("--seed", type=int, help="to repeat a run, as far as processes allow")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def _failed(console: Console, reason: str) -> int:
    console.print(f"The order flow could not run: {reason}", style="bold red", markup=False, soft_wrap=True)
    return FAILED


if __name__ == "__main__":
    sys.exit(main())
