"""The order chain's command line: ``python -m examples.order_chain``."""

import argparse
import sys
from collections.abc import Sequence
from contextlib import ExitStack

from rich.console import Console
from rich.progress import Progress
from sqlalchemy import URL, Engine, create_engine
from sqlalchemy.exc import SQLAlchemyError

from examples._common import add_url, database, url_of
from examples.order_chain import __doc__ as about
from examples.order_chain import report, trial
from examples.order_chain.brokers import EXPECTED, transport_over
from examples.order_chain.plan import Plan
from examples.order_chain.transport import Direct, Transport
from examples.order_chain.trial import Result
from examples.order_flow.report import progress
from inbox import migration
from inbox.errors import InboxError

KEPT, BROKEN, FAILED, INTERRUPTED = 0, 1, 2, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the chain; return 0 if every promise was kept, 1 if not, 2 if it could not run."""
    parser = _parser()
    options = parser.parse_args(arguments)
    given = url_of(parser, options)
    console = Console()
    try:
        with database(given) as url, ExitStack() as stack:
            plan = Plan(options.orders, options.kills, options.seed)
            brokers = [stack.enter_context(transport_over(each)) for each in options.broker]
            return compare(console, url, plan, [Direct(), *brokers])
    except KeyboardInterrupt:
        console.print("interrupted")
        return INTERRUPTED
    except SQLAlchemyError as error:
        # The driver's text only: SQLAlchemy adds the statement and its parameters.
        return _failed(console, str(getattr(error, "orig", None) or error))
    except (ModuleNotFoundError, RuntimeError, InboxError) as error:
        return _failed(console, str(error))


def compare(console: Console, url: URL, plan: Plan, transports: Sequence[Transport]) -> int:
    """Run the chain over one transport after the other, and show all results."""
    refused = sum(status == "refused" for status in plan.statuses.values())
    resent = sum(request.times > 1 for request in plan.requests)
    console.print(f"{plan.orders} orders: {refused} are refused downstream, {resent} are sent twice")
    console.print(f"{len(plan.requests) - plan.orders} more are rolled back after they were published")
    console.print(f"{plan.kills} times a process is killed with kill -9 and restarted (seed {plan.seed})")
    engine = create_engine(url)
    try:
        migration.migrate(engine)
        try:
            with ExitStack() as stack, progress(console) as bars:
                for each in transports:
                    stack.enter_context(each.opened())
                results = {each.name: one(engine, each, plan, bars) for each in transports}
        finally:
            trial.clean_up(engine)
    finally:
        engine.dispose()
    console.print(report.table(plan, results))
    broken = report.broken(plan, results)
    for promise in broken:
        console.print(f"BROKEN: {promise}", style="bold red", soft_wrap=True)
    if not broken:
        console.print("Every promise was kept.", style="green")
    return BROKEN if broken else KEPT


def one(engine: Engine, transport: Transport, plan: Plan, bars: Progress) -> Result:
    """Run the chain over one transport, with its own progress bar."""
    task = bars.add_task(transport.name, total=plan.orders)
    return trial.run(engine, transport, plan, lambda done: bars.update(task, completed=done))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m examples.order_chain",
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_url(parser)
    parser.add_argument(
        "--broker",
        action="append",
        default=[],
        help=f"also run over {EXPECTED}; a name starts a server, and kills it as well; may be repeated",
    )
    parser.add_argument("--orders", type=_positive, default=40, metavar="N", help="how many (default: 40)")
    parser.add_argument(
        "--kills", type=_positive, default=20, metavar="N", help="processes to kill each time (default: 20)"
    )
    parser.add_argument("--seed", type=int, default=0, help="for the orders and the kills (default: 0)")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def _failed(console: Console, reason: str) -> int:
    console.print(f"The order chain could not run: {reason}", style="bold red", markup=False, soft_wrap=True)
    return FAILED


if __name__ == "__main__":
    sys.exit(main())
